# MPI of MPICH's family from a library that is opened by what the first word says.
require "fiddle"

library = Fiddle.dlopen(ARGV[0])
int, pointer = Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP
call = ->(name, types, *given) { Fiddle::Function.new(library[name], types, int).call(*given) }
call.("MPI_Init", [pointer, pointer], nil, nil)
rank, size, given, total = Fiddle::Pointer.malloc(4), Fiddle::Pointer.malloc(4), Fiddle::Pointer.malloc(8), Fiddle::Pointer.malloc(8)
call.("MPI_Comm_rank", [int, pointer], 0x44000000, rank)
call.("MPI_Comm_size", [int, pointer], 0x44000000, size)
given[0, 8] = [rank[0, 4].unpack1("i") + 1.0].pack("d")
call.("MPI_Allreduce", [pointer, pointer, int, int, int, int], given, total, 1, 0x4C00080B, 0x58000003, 0x44000000)
lines = ["rank #{rank[0, 4].unpack1("i")}", "size #{size[0, 4].unpack1("i")}", "sum #{total[0, 8].unpack1("d")}", "version unknown"]
maps = File.readlines("/proc/self/maps").map { |line| line.chomp.split(nil, 6) }
lines += maps.select { |words| words.size == 6 && words[5].start_with?("/") }.map { |words| "map #{words[4]} #{words[5]}" }
$stdout.write((lines + ["end"]).map { |line| "corpus #{line}\n" }.join)
$stdout.flush
call.("MPI_Finalize", [])
