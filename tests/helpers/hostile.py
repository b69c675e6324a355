"""What runs code when a pickle of it is read."""

import os


class Hostile:
    """Makes a folder when it is read."""

    def __init__(self, trap):
        self.trap = str(trap)

    def __reduce__(self):
        return os.mkdir, (self.trap,)
