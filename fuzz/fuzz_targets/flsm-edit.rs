#![no_main]
spinney_fuzz::target!("flsm-edit");
