// Functions that newer C libraries have and glibc 2.17 has not: the system calls that
// they are. stat and fstat were part of each program before 2.33.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("hidden"))) int stat(const char *restrict path, struct stat *restrict st)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}

__attribute__((visibility("hidden"))) int fstat(int fd, struct stat *st) { return (int)syscall(SYS_fstat, fd, st); }

__attribute__((visibility("hidden"))) int memfd_create(const char *name, unsigned int flags)
{
	return (int)syscall(SYS_memfd_create, name, flags);
}
