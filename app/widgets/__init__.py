"""What the screens are made of. Data goes down by methods and reactives, messages go up."""
