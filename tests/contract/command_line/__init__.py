"""What an operator does with the command line, on our broker and on the Java broker."""
