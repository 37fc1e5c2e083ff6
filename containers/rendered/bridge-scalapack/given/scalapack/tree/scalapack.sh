# Debian's ScaLAPACK for MPICH, and Debian's name for the image's own MPICH.
libraries=/usr/lib/$(gcc -print-multiarch)
mkdir -p "$DESTDIR$libraries" "$DESTDIR$MPI_PREFIX/lib"
cp -P "$libraries"/libscalapack-mpich.so.2.2* "$DESTDIR$libraries/"
ln -s libmpi.so.12 "$DESTDIR$MPI_PREFIX/lib/libmpich.so.12"
