#![no_main]
spinney_fuzz::target!("stb-edit");
