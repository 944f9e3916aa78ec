//! Shared libraries opened when the command runs, so that building it needs none of them.

/// Declares a table of C functions, and how to fill it from the first library of a list that is there.
/// With `env "NAME"` before the list, a library that this variable names is the only one looked for.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident from $(env $variable:literal,)? [$($file:literal),+] { $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        struct $table {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _library: libloading::Library,
        }

        impl $table {
            fn load() -> $crate::engine::Result<$table> {
                let files = vec![$(std::ffi::OsString::from($file)),+];
                $(
                    let files = match std::env::var_os($variable) {
                        Some(named) => vec![named],
                        None => files,
                    };
                )?
                $table::load_first(&files)
            }

            /// Fills the table from the first of these libraries that is there.
            fn load_first(files: &[std::ffi::OsString]) -> $crate::engine::Result<$table> {
                let mut failures = Vec::new();
                for file in files {
                    // SAFETY: these are the libraries that they are named for; their initialisers do
                    // nothing but set up their own statics.
                    let library = match unsafe { libloading::Library::new(file) } {
                        Ok(library) => library,
                        Err(error) => {
                            use std::error::Error;
                            let why = error.source().map_or(error.to_string(), |e| e.to_string());
                            failures.push(why);
                            continue;
                        }
                    };
                    $(
                        // SAFETY: the type is the one the library's header declares.
                        let $name = unsafe {
                            *library
                                .get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                    concat!(stringify!($name), "\0"),
                                )
                                .map_err(|error| {
                                    let file = file.to_string_lossy();
                                    format!("{file} has no {}: {error}", stringify!($name))
                                })?
                        };
                    )*
                    return Ok($table { $($name,)* _library: library });
                }
                Err(format!("no such library could be loaded ({})", failures.join("; ")))
            }
        }
    };
}

pub(crate) use functions;
