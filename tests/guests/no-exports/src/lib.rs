//! A component without the exports of a plugin: what a forgotten `export!` builds.
