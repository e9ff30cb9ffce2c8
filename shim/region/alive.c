/* Liveness: which processes are alive, as far as the kernel tells. docs/protocols.md, *Liveness*.
 *
 * A failure to ask is not an answer. Only these answers mean that a process is dead: a free lock,
 * ESRCH, another start time, a zombie. If anything else goes wrong (no free descriptor, no
 * permission, no memory), the process counts as alive.
 *
 * A dead process's bytes are returned only when the driver has freed them. The driver does this
 * when the process's open files of the driver are released: after the kernel has dropped the
 * process's record locks, before the process is a zombie, and not while a fork child still has
 * these files. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "internal.h"

/* region_lock locks the slot's byte for as long as this process lives. It never waits: it returns
 * REGION_FULL if another process has the lock, REGION_SYSTEM if it cannot try. */
int region_lock(struct region *r, unsigned slot) { return region_lock_by(region_fd(r), slot); }

void region_lock_own(struct region *r)
{
	uint64_t claim = load_acquire(&r->claim);
	if (claim)
		region_lock(r, claim_slot(claim));
}

void region_unlock(struct region *r, unsigned slot)
{
	struct flock l = region_lock_byte(slot, LOCK_PROCESS, F_UNLCK);
	fcntl(region_fd(r), F_SETLK, &l);
}

int region_locked_by(struct region *r, unsigned slot)
{
	struct flock l = region_lock_byte(slot, LOCK_PROCESS, F_WRLCK); /* so that locks for reading are found, too */
	return fcntl(region_fd(r), F_GETLK, &l) == 0 && l.l_type != F_UNLCK && l.l_pid > 0 ? l.l_pid : 0;
}

/* region_kept returns true if an open file has locked the slot's second byte, or if asking fails. */
bool region_kept(struct region *r, unsigned slot)
{
	/* The kernel does not tell which process has such a lock, only that there is one. */
	struct flock l = region_lock_byte(slot, LOCK_FILES, F_RDLCK);
	return fcntl(region_fd(r), F_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

/* region_keep opens the region once more and locks the second byte of this process's slot through
 * this open file. Then it closes the descriptor: only a mapping keeps the open file. A fork child
 * inherits the mapping and exec removes it, as with the driver's descriptors. When a process ends,
 * the kernel removes mappings before descriptors, and releases open files in the reverse order:
 * this one after the driver's. A program that closes all descriptors does not close it. If any step
 * fails, the other questions of *Liveness* decide. */
void region_keep(struct region *r)
{
	uint64_t claim = load_acquire(&r->claim);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	if (r->keep)
		munmap(r->keep, page); /* for a slot that was taken from this process */
	r->keep = NULL;
	int fd = claim ? region_file_again(r) : -1;
	if (fd < 0)
		return;
	struct flock l = region_lock_byte(claim_slot(claim), LOCK_FILES, F_WRLCK);
	if (fcntl(fd, F_OFD_SETLK, &l) == 0) {
		/* The mapping is never read. Its offset is the slot's number, by which ration ps
		 * finds the fork children. */
		void *mem = mmap(NULL, page, PROT_NONE, MAP_SHARED, fd, (off_t)(claim_slot(claim) * page));
		r->keep = mem == MAP_FAILED ? NULL : mem;
	}
	close(fd);
	region_lock_own(r); /* the close has dropped this process's record lock */
}

/* alive_gone returns true if no process has this PID. It needs no descriptor, and does not need
 * /proc, which may hide the processes of other users. */
static bool alive_gone(uint64_t pid) { return pid == 0 || pid > INT_MAX || (kill((pid_t)pid, 0) != 0 && errno == ESRCH); }

/* alive_read reads the beginning of a file in /proc/PID as text. It returns false if the file
 * cannot be read. */
static bool alive_read(const char *pid, const char *file, char *buf, size_t size)
{
	char path[40];
	snprintf(path, sizeof path, "/proc/%s/%s", pid, file);
	return region_read_text(path, buf, size);
}

/* What /proc tells about a process. */
struct alive_process {
	uint64_t start; /* clock ticks since boot */
	bool ended;     /* all its threads have ended, and its files have been released */
	bool ending;    /* it has begun to end: its mappings may be gone while the driver still has its memory */
};

/* alive_read_process reads /proc/PID/stat. It returns false if that fails. */
static bool alive_read_process(const char *pid, struct alive_process *a)
{
	enum { STATE = 3, FLAGS = 9, THREADS = 20, START = 22, EXITING = 0x4 };
	char buf[1024];
	if (!alive_read(pid, "stat", buf, sizeof buf))
		return false;
	/* The second field is a name in brackets and may contain any character: count from the last
	 * bracket. */
	char *p = strrchr(buf, ')'), state = 0;
	uint64_t flags = 0, threads = 0;
	for (int field = STATE; field <= START; field++) {
		p = p ? strchr(p + 1, ' ') : NULL;
		if (!p)
			return false;
		if (field == STATE)
			state = p[1];
		else if (field == FLAGS)
			flags = strtoull(p + 1, NULL, 10);
		else if (field == THREADS)
			threads = strtoull(p + 1, NULL, 10);
		else if (field == START)
			a->start = strtoull(p + 1, NULL, 10);
	}
	/* If only the first thread has ended, and others run, the process has not ended. */
	a->ended = (state == 'Z' || state == 'X') && threads <= 1;
	a->ending = flags & EXITING;
	return true;
}

void region_identify(struct region_identity *me)
{
	struct stat st;
	char name[24], pid[24];
	struct alive_process self = {0};
	memset(me, 0, sizeof *me);
	me->pid = (uint64_t)getpid();
	/* Use "self": it means this process even if /proc is of another namespace, in which our PID
	 * is another process's. */
	alive_read_process("self", &self);
	me->start = self.start;
	ssize_t n = readlink("/proc/self", name, sizeof name - 1);
	snprintf(pid, sizeof pid, "%llu", (unsigned long long)me->pid);
	me->sees = n > 0 && (name[n] = 0, !strcmp(name, pid));
	/* By number: the function's name depends on the C library's age. */
	if (syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0)
		me->pidns = st.st_ino;
	else
		me->unsure = errno != ENOENT;
}

/* alive_set_uid returns true if a process of an ordinary user has another effective UID. That is
 * possible only after exec of a set-uid program. It compares UIDs only if both processes have the
 * same uid_map. */
static bool alive_set_uid(const char *pid, uint64_t uid)
{
	char text[512], mine[512], *end;
	if (uid == 0 || !alive_read(pid, "uid_map", text, sizeof text) || !alive_read("self", "uid_map", mine, sizeof mine) ||
	    strcmp(text, mine))
		return false;
	if (!alive_read(pid, "status", text, sizeof text) || !(end = strstr(text, "\nUid:\t")) || !(end = strchr(end + 6, '\t')))
		return false;
	uint64_t effective = strtoull(end, &end, 10);
	return *end == '\t' && effective != uid;
}

/* alive_mapped_by returns true if a process has the region mapped. A process that lost its lock by
 * closing files still has it mapped; a process that called exec does not. If /proc/PID/maps cannot
 * be read, it returns true, except for a set-uid program, which cannot be the one that mapped it. */
static bool alive_mapped_by(const struct region *r, const char *pid, uint64_t uid)
{
	enum { CHUNK = 4096, ROOM = 2 * CHUNK + 1, MOST = 16 << 20 }; /* a large program's list is a few hundred KiB */
	char path[40], inode[48];
	snprintf(path, sizeof path, "/proc/%s/maps", pid);
	/* Search by device and inode, or by path: a stacked file system may show another device and
	 * inode. */
	snprintf(inode, sizeof inode, " %02x:%02x %llu ", major(r->dev), minor(r->dev), (unsigned long long)r->ino);
	int fd = region_open_fd(path, O_RDONLY, 0);
	if (fd < 0)
		return errno != EACCES || !alive_set_uid(pid, uid);
	/* Not on the stack: it belongs to the program, and a thread's stack may be only 16 KiB. */
	char *buf = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf == MAP_FAILED) {
		close(fd);
		return true;
	}
	size_t kept = 0, total = 0;
	bool any = false, found = false;
	ssize_t n;
	for (; !found && (n = read(fd, buf + kept, CHUNK)) > 0; any = true) {
		if ((total += (size_t)n) > MOST) {
			found = true; /* assume that it is mapped: a program can make a list that takes minutes to read */
			break;
		}
		size_t all = kept + (size_t)n;
		buf[all] = 0;
		found = strstr(buf, inode) || (r->path[0] == '/' && strstr(buf, r->path));
		/* The text may be split between two reads. */
		kept = all < CHUNK ? all : CHUNK;
		memmove(buf, buf + all - kept, kept);
	}
	close(fd);
	munmap(buf, ROOM);
	return found || n < 0 || !any;
}

/* The slots that this process has locked, by generation: the kernel does not report a process's own
 * locks to it. */
static uint64_t alive_held[RATION_SLOTS];

void region_hold(unsigned slot, uint64_t gen) { store_release(&alive_held[slot], gen); }

/* region_let_go removes a slot from the list above, unless this process has claimed it again with
 * another generation. */
void region_let_go(unsigned slot, uint64_t gen) { cas(&alive_held[slot], gen, 0); }

/* alive_ended returns how the process with a PID is known to have ended, as a RATION_CAUSE; 0 if it
 * runs or this is not known. The PID must not be that of this process. */
static unsigned alive_ended(uint64_t pid, const char *name, uint64_t start, struct alive_process *a)
{
	if (!alive_read_process(name, a))
		return alive_gone(pid) ? RATION_CAUSE_ENDED : 0;
	/* A start time of 0: the owner could not read its own. */
	if (start && a->start != start)
		return RATION_CAUSE_REUSED;
	return a->ended ? RATION_CAUSE_ZOMBIE : 0;
}

/* alive_pid sets *pid to the PID that a slot's owner has in this process's PID namespace. It
 * returns false if it has none there. */
static bool alive_pid(const struct ration_slot *s, const struct region_identity *me, uint64_t *pid)
{
	uint64_t ns = load_acquire(&s->pidns);
	*pid = load_acquire(&s->pid);
	if (ns != 0 && ns == me->pidns)
		return true;
	*pid = host_pid_of(load_acquire(&s->host_pid));
	return me->pidns == REGION_INIT_PIDNS && *pid != 0;
}

/* region_dead returns how the owner of a slot is known to be dead, with its memory freed by the
 * driver, as a RATION_CAUSE; 0 if it is not known to be. */
unsigned region_dead(struct region *r, unsigned slot, uint64_t status)
{
	if (load_acquire(&alive_held[slot]) == status_gen(status))
		return 0;
	struct flock l = region_lock_byte(slot, LOCK_PROCESS, F_RDLCK);
	if (fcntl(region_fd(r), F_GETLK, &l) != 0 || l.l_type != F_UNLCK)
		return 0;
	if (status_state(status) == RATION_SLOT_JOINING)
		return RATION_CAUSE_JOINING; /* the owner took the lock before the claim, so it has lost it by dying */
	/* Ask for the second lock after the first, which the kernel drops first. If the second one
	 * is free too, the driver has released the memory, or the process never had this lock. */
	if (region_kept(r, slot))
		return 0;
	/* No lock. A living process may have lost it by a close, so ask about the process as well,
	 * if its PID is known in our namespace. */
	struct ration_slot *s = &r->m->slots[slot];
	struct region_identity me;
	uint64_t pid, start = load_acquire(&s->start);
	region_identify(&me);
	if (me.unsure)
		return 0;
	if (!alive_pid(s, &me, &pid))
		return RATION_CAUSE_UNSEEN;
	/* The slot has our own PID. Either this process had the slot before an exec, which drops
	 * the lock; or the PID was reused for us. */
	if (pid == me.pid)
		return RATION_CAUSE_EXEC;
	if (alive_gone(pid))
		return RATION_CAUSE_ENDED;
	if (!me.sees)
		return 0; /* /proc is of another namespace, and would describe another process */
	char name[24];
	struct alive_process a = {0};
	snprintf(name, sizeof name, "%llu", (unsigned long long)pid);
	unsigned cause = alive_ended(pid, name, start, &a);
	if (cause || alive_mapped_by(r, name, load_acquire(&s->uid)))
		return cause;
	/* The kernel removes mappings early when a process ends: if the process has begun to end,
	 * the missing mapping does not mean that it called exec. */
	cause = alive_ended(pid, name, start, &a);
	return cause || a.ending ? cause : RATION_CAUSE_UNMAPPED;
}

/* region_ending returns whether the owner of a slot, which holds bytes, runs, ends or has ended. It
 * is used for messages and shares only: no bytes are returned because of it. */
enum region_holder_end region_ending(struct region *r, unsigned slot)
{
	const struct ration_slot *s = &r->m->slots[slot];
	struct alive_process a = {0};
	struct region_identity me;
	char name[24];
	uint64_t pid;
	if (status_state(load_acquire(&r->m->status[slot])) == RATION_SLOT_LENT)
		return REGION_LENT;
	if (region_locked_by(r, slot) || !region_kept(r, slot))
		return REGION_RUNS;
	region_identify(&me);
	if (me.unsure || !alive_pid(s, &me, &pid))
		return REGION_RUNS; /* it may have lost its lock only */
	if (alive_gone(pid))
		return REGION_OUTLIVED;
	snprintf(name, sizeof name, "%llu", (unsigned long long)pid);
	if (me.sees && alive_ended(pid, name, load_acquire(&s->start), &a))
		return REGION_OUTLIVED;
	return a.ending ? REGION_ENDING : REGION_RUNS;
}
