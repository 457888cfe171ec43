"""What each process reads in an epoch, and states from which a run goes on."""
