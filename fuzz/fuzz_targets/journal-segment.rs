#![no_main]
spinney_fuzz::target!("journal-segment");
