//! `include/orate.h` is made from the source.

use std::path::Path;

/// `ORATE_UPDATE_HEADER=1` rewrites the header.
#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a configuration");
    let mut builder = cbindgen::Builder::new().with_config(config);
    // In the order in which a reader wants them.
    for file in ["failure", "engine", "speech"] {
        builder = builder.with_src(folder.join("src").join(file).with_extension("rs"));
    }
    let mut header = vec![];
    builder.generate().expect("a header").write(&mut header);
    let header = String::from_utf8(header).expect("text");
    let path = folder.join("include/orate.h");
    if std::env::var_os("ORATE_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &header).expect("the header is written");
    }
    let kept = std::fs::read_to_string(&path).expect("include/orate.h is committed");
    assert!(
        kept == header,
        "include/orate.h is out of date: run `ORATE_UPDATE_HEADER=1 cargo test -p orate-c header`"
    );
}
