#![no_main]
spinney_fuzz::target!("block-filter");
