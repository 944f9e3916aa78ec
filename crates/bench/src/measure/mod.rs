//! Measurements of the operating system and the device.

pub mod cgroup;
pub mod device;
pub mod disk;
pub mod measurement;
pub mod meter;
pub mod watch;
