const library = "libmpich.so.12"  # by its name
include("look.jl")
