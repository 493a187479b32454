"""The shipped models, one TOML file each."""
