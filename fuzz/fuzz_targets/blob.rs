#![no_main]
spinney_fuzz::target!("blob");
