"""The terminal chat app: screens over `edgeinfer.llm`, conversations on disk, one registry of actions."""
