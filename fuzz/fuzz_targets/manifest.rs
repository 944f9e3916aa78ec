#![no_main]
spinney_fuzz::target!("manifest");
