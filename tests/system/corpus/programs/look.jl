# MPI of MPICH's family as MPI.jl calls it: by ccall, of the `library` that the script which includes this names.
ccall((:MPI_Init, library), Cint, (Ptr{Cint}, Ptr{Cvoid}), C_NULL, C_NULL)
rank, size, total = Ref{Cint}(0), Ref{Cint}(0), Ref{Cdouble}(0)
ccall((:MPI_Comm_rank, library), Cint, (Cint, Ref{Cint}), 0x44000000 % Cint, rank)
ccall((:MPI_Comm_size, library), Cint, (Cint, Ref{Cint}), 0x44000000 % Cint, size)
given = Ref{Cdouble}(rank[] + 1)
ccall(
    (:MPI_Allreduce, library), Cint, (Ref{Cdouble}, Ref{Cdouble}, Cint, Cint, Cint, Cint),
    given, total, 1, 0x4C00080B % Cint, 0x58000003 % Cint, 0x44000000 % Cint,
)
lines = ["rank $(rank[])", "size $(size[])", "sum $(total[])", "version unknown"]
for line in eachline("/proc/self/maps")
    words = split(line, keepempty = false)
    length(words) == 6 && startswith(words[6], "/") && push!(lines, "map $(words[5]) $(words[6])")
end
print(join(("corpus $line\n" for line in [lines; "end"])))
flush(stdout)
ccall((:MPI_Finalize, library), Cint, ())
