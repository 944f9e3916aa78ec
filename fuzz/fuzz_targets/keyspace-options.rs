#![no_main]
spinney_fuzz::target!("keyspace-options");
