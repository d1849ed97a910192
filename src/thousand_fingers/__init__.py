"""A Thousand Fingers: the algorithms behind an executable book on privacy and robustness.

Import the module of the chapter you read, for instance
``from thousand_fingers.mechanisms import laplace_mechanism``. Nothing heavy is
imported here, so that every module can be used on its own.
"""

__version__ = "0.1.0"
