#![no_main]
spinney_fuzz::target!("hash-index-page");
