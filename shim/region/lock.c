/* A slot's two record locks. The first belongs to the process that has the slot. The second belongs
 * to an open file that lives as long as the driver's files in that process and in its fork
 * children. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

#include "internal.h"

struct flock region_lock_byte(unsigned slot, enum region_lock_byte byte, short type)
{
	return (struct flock){
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)(offsetof(struct ration_region, slots) + slot * sizeof(struct ration_slot) + byte),
		.l_len = 1,
	};
}

int region_lock_by(int fd, unsigned slot)
{
	struct flock l = region_lock_byte(slot, LOCK_PROCESS, F_WRLCK);
	if (fcntl(fd, F_SETLK, &l) == 0)
		return REGION_OK;
	return errno == EAGAIN || errno == EACCES ? REGION_FULL : REGION_SYSTEM;
}
