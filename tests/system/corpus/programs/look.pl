# MPI of MPICH's family from a library that is opened by what the first word says.
use FFI::Platypus 1.00;
my $ffi = FFI::Platypus->new(api => 1, lib => [$ARGV[0]]);
$ffi->attach(MPI_Init => ["opaque", "opaque"] => "int");
$ffi->attach(MPI_Comm_rank => ["int", "int*"] => "int");
$ffi->attach(MPI_Comm_size => ["int", "int*"] => "int");
$ffi->attach(MPI_Allreduce => ["double*", "double*", "int", "int", "int", "int"] => "int");
$ffi->attach(MPI_Finalize => [] => "int");
MPI_Init(undef, undef);
my ($rank, $size, $total) = (0, 0, 0.0);
MPI_Comm_rank(0x44000000, \$rank);
MPI_Comm_size(0x44000000, \$size);
my $given = $rank + 1.0;
MPI_Allreduce(\$given, \$total, 1, 0x4C00080B, 0x58000003, 0x44000000);
my @lines = ("rank $rank", "size $size", sprintf("sum %.1f", $total), "version unknown");
open(my $maps, "<", "/proc/self/maps");
while (my $line = <$maps>) {
    chomp $line;
    my @words = split(/\s+/, $line, 6);
    push @lines, "map $words[4] $words[5]" if @words == 6 && $words[5] =~ m{^/};
}
$| = 1;
print join("", map { "corpus $_\n" } @lines, "end");
MPI_Finalize();
