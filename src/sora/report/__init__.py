"""Tables and figures, made from run folders alone."""
