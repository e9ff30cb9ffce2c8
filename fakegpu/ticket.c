#define _GNU_SOURCE
#include "ticket.h"

#include <sys/mman.h>
#include <unistd.h>

enum { TICKET_MAGIC = 0x746b6366 };

struct ticket ticket_new(enum ticket_kind kind, unsigned device, uint64_t address, uint64_t size)
{
	return (struct ticket){.magic = TICKET_MAGIC,
			       .kind = kind,
			       .slot = machine_slot(),
			       .device = device,
			       .identity = machine_identity(),
			       .address = address,
			       .size = size};
}

bool ticket_good(const struct ticket *t, enum ticket_kind kind, CUdevice *ordinal)
{
	/* Memory of an IPC handle can outlive its maker: share_open looks. */
	if (t->magic != TICKET_MAGIC || t->kind != kind || (kind != TICKET_IPC && !machine_alive(t->slot, t->identity)))
		return false;
	for (unsigned i = 0; i < visible_devices(); i++)
		if (device_index((CUdevice)i) == t->device) {
			*ordinal = (CUdevice)i;
			return true;
		}
	return false;
}

int ticket_to_fd(const struct ticket *t)
{
	int fd = memfd_create("fakegpu-ticket", MFD_CLOEXEC);
	if (fd >= 0 && write(fd, t, sizeof *t) != (ssize_t)sizeof *t) {
		close(fd);
		fd = -1;
	}
	return fd;
}

bool ticket_from_fd(int fd, struct ticket *t) { return pread(fd, t, sizeof *t, 0) == (ssize_t)sizeof *t; }
