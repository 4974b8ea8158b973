"""What the user set for the app, in TOML files beside ``config.toml``; a mistake in them is said, and costs a line."""
