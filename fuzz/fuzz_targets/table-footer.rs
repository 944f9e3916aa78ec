#![no_main]
spinney_fuzz::target!("table-footer");
