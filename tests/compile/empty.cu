// Nothing: headers are given to the compiler by -include.
