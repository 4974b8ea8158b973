"""Screens, each with its style sheet beside it; they own the flow, widgets know nothing of them."""
