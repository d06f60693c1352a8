//! One op per file: formula, plain version, fast version, tests.
