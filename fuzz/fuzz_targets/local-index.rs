#![no_main]
spinney_fuzz::target!("local-index");
