const library = "/usr/lib/x86_64-linux-gnu/libmpich.so.12"  # by its path
include("look.jl")
