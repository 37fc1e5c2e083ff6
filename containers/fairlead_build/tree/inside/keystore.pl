# Java's list of trusted authorities notes when each was added: the moment of the build. Here every
# one gets SOURCE_DATE_EPOCH. `clean.sh` runs this in the tree, by the Perl that each Debian has.
#
# JKS, version 2, big-endian: FEEDFEED, version, number of entries; an entry of a certificate is
# tag 2, alias, date in ms (8 bytes), kind, certificate; at the end SHA-1 of a fixed salt and all that.
# (OpenJDK, sun/security/provider/JavaKeyStore.java)
use strict;
use warnings;

my ($path, $epoch) = @ARGV;
open(my $in, '<:raw', $path) or die "$path: $!";
local $/;
my $store = <$in>;
close($in);
my ($magic, $version, $count) = unpack('N3', $store);
die "$path is no Java key store of version 2\n" unless $magic == 0xFEEDFEED && $version == 2;

my $at = 12;
for (1 .. $count) {
    die "$path holds a private key\n" unless unpack('N', substr($store, $at, 4)) == 2;
    $at += 4;
    $at += 2 + unpack('n', substr($store, $at, 2));
    substr($store, $at, 8) = pack('Q>', $epoch * 1000);
    $at += 8;
    $at += 2 + unpack('n', substr($store, $at, 2));
    $at += 4 + unpack('N', substr($store, $at, 4));
}
die "$path is damaged\n" unless length($store) == $at + 20;

# The password is the one that every Java comes with, in UTF-16.
my $salted = join('', map { "\0$_" } split(//, 'changeit')) . 'Mighty Aphrodite' . substr($store, 0, $at);
open(my $out, '>:raw', "$path.new") or die "$path.new: $!";
print {$out} $salted;
close($out) or die "$path.new: $!";
my $digest = (split(/ /, `sha1sum '$path.new'`))[0];
open($out, '>:raw', "$path.new") or die "$path.new: $!";
print {$out} substr($store, 0, $at), pack('H40', $digest);
close($out) or die "$path.new: $!";
chmod(0644, "$path.new") or die "$path.new: $!";
rename("$path.new", $path) or die "$path: $!";
