#![no_main]
spinney_fuzz::target!("table-key-list");
