#include "hugepages.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

#include "interpose.h"
#include "log.h"

/* The smallest mapping that is changed: below this the small pages cost little. */
#define HUGEPAGES_LEAST (64ul << 20)

static bool hugepages_is_room(size_t size, int flags)
{
	int room = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
	return size >= HUGEPAGES_LEAST && (flags & (room | MAP_HUGETLB)) == room;
}

/* hugepages_mmap is the driver's mmap. The mmap that it calls is the function to which the driver's
 * reference was bound: this library's references are looked up in the same order. */
static void *hugepages_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	if (!hugepages_is_room(size, flags))
		return mmap(at, size, protection, flags, fd, offset);
	int before = errno;
	void *room = mmap(at, size, protection, flags & ~MAP_POPULATE, fd, offset);
	if (room == MAP_FAILED || madvise(room, size, MADV_HUGEPAGE) == 0)
		return room;
	/* A kernel without huge pages: do what the driver asked for. */
	errno = before;
	munmap(room, size);
	return mmap(at, size, protection, flags, fd, offset);
}

void hugepages_begin(void)
{
	/* Both names are one function where off_t has 64 bits; the driver uses either. */
	bool mmap_found = interpose_in_driver("mmap", (void *)hugepages_mmap);
	bool mmap64_found = interpose_in_driver("mmap64", (void *)hugepages_mmap);
	if (!mmap_found && !mmap64_found)
		log_debug("the driver maps memory in an unknown way: putting this process to sleep takes longer");
}
