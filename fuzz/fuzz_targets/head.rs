#![no_main]
spinney_fuzz::target!("head");
