/* Liveness: ask the kernel. docs/protocols.md, section 4. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "region_internal.h"

static struct flock slot_byte(unsigned slot, short type)
{
	return (struct flock){
	    .l_type = type,
	    .l_whence = SEEK_SET,
	    .l_start = (off_t)(offsetof(struct ration_region, slots) + slot * sizeof(struct ration_slot)),
	    .l_len = 1,
	};
}

/* region_lock marks slot as this process's for as long as it lives. It only ever
 * tries. */
bool region_lock(struct region *r, unsigned slot)
{
	return region_lock_by(region_fd(r), slot);
}

bool region_lock_by(int fd, unsigned slot)
{
	struct flock l = slot_byte(slot, F_WRLCK);
	return fcntl(fd, F_SETLK, &l) == 0;
}

void region_unlock(struct region *r, unsigned slot)
{
	struct flock l = slot_byte(slot, F_UNLCK);
	fcntl(region_fd(r), F_SETLK, &l);
}

/* start_time reads when a process started and its state; false if there is none. */
static bool start_time(uint64_t pid, uint64_t *start, char *state)
{
	char path[40], buf[1024];
	snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, buf, sizeof buf - 1);
	close(fd);
	if (n <= 0)
		return false;
	buf[n] = 0;
	/* The second field is a name in brackets that may hold anything: count from
	 * the last bracket. State is field 3, the start time field 22. */
	char *p = strrchr(buf, ')');
	if (!p || p[1] != ' ')
		return false;
	*state = p[2];
	for (int field = 2; field < 22; field++) {
		p = strchr(p + 1, ' ');
		if (!p)
			return false;
	}
	*start = strtoull(p + 1, NULL, 10);
	return true;
}

void region_identify(struct region_identity *me)
{
	struct stat st;
	char state;
	memset(me, 0, sizeof *me);
	me->pid = (uint64_t)getpid();
	start_time(me->pid, &me->start, &state);
	/* By number: the function's name depends on the C library's age. */
	if (syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0)
		me->pidns = st.st_ino;
}

bool region_dead(struct region *r, unsigned slot, bool joining)
{
	struct flock l = slot_byte(slot, F_RDLCK);
	if (fcntl(region_fd(r), F_GETLK, &l) != 0 || l.l_type != F_UNLCK)
		return false;
	if (joining)
		return true; /* the lock came before the claim, a moment ago */
	/* No lock. It may have been lost by a close in a process that lives on, so ask
	 * for the process as well, where its PID means anything to us. */
	struct ration_slot *s = &r->m->slots[slot];
	struct region_identity me;
	region_identify(&me);
	uint64_t pid = load_acquire(&s->pid), ns = load_acquire(&s->pidns), start = load_acquire(&s->start);
	if (ns == 0 || ns != me.pidns) {
		pid = load_acquire(&s->host_pid);
		if (me.pidns != REGION_INIT_PIDNS || pid == 0)
			return true;
	}
	if (pid == me.pid && start == me.start)
		return false;
	uint64_t now;
	char state;
	return !start_time(pid, &now, &state) || now != start || state == 'Z' || state == 'X';
}
