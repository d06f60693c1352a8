//! Books, plans and work folders through the public API.

mod books;
mod damaged;
mod epubs;
mod joining;
mod plans;
mod work_folders;

use orate_testing::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
