/* Exported memory outlives its maker while there is a descriptor of it, or a process that has imported
 * it. docs/protocols.md, *Lent memory*. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* How many descriptors of this process are searched for one of the driver's file before the kernel is
 * asked for the list: /proc need not be there, and a process may have no descriptor left for it. */
enum { LENT_DESCRIPTORS = 1024 };

/* A reading of the kernel's list of locks in several pieces leaves out a lock if others are dropped between
 * two of them. So a lock that is not in it is taken for dropped when LENT_EQUAL readings in a row are equal, or
 * when it is in none of LENT_READINGS of a list that changes all the time. (Beside a lock that is taken and
 * dropped all the time, two readings that leave out the same one can be equal.) A list of more than
 * LENT_PIECES pieces (some 8,000 locks) is not read: the kernel looks for the place of each piece from
 * the beginning. */
enum { LENT_READINGS = 32, LENT_EQUAL = 6, LENT_PIECES = 256 };

uint64_t region_export_file(int fd)
{
	struct stat st;
	return region_stat(fd, &st) ? 0 : device_hash((const uint64_t[2]){st.st_dev, st.st_ino}) | 1;
}

int region_export_lock(int fd, uint64_t lock)
{
	struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)lock, .l_len = 1};
	return fcntl(fd, F_OFD_SETLK, &l) ? REGION_SYSTEM : REGION_OK;
}

int region_set_exports(struct region *r, unsigned device, const struct region_exports *e)
{
	uint64_t claim = load_acquire(&r->claim);
	int err = region_take(r, device, claim, true);
	if (err)
		return err;
	struct ration_account *a = account(r, device, claim_slot(claim));
	/* Read them in the turn, so that the last thread to have it stores the newest values. The
	 * file is set before the lock. */
	uint64_t lock = load_acquire(&e->lock);
	uint64_t units = units_for(load_acquire(&e->bytes));
	if (units > RATION_MAX_UNITS)
		units = RATION_MAX_UNITS;
	store_release(&a->exported, make_exported(load_acquire(&e->file), units));
	/* Release: a reaper that finds the lock finds its file. */
	store_release(&a->export_lock, lock);
	region_yield(r, device, claim);
	return REGION_OK;
}

enum lent_answer { LENT_CLOSED, LENT_OPEN, LENT_UNKNOWN };

/* lent_listed_descriptor does the same as lent_descriptor, by the kernel's list of this process's
 * descriptors, however many there are. */
static int lent_listed_descriptor(uint64_t file)
{
	_Alignas(struct dirent64) char text[2048];
	long n, found = -1;
	int list = region_open_fd("/proc/self/fd", O_RDONLY | O_DIRECTORY, 0);
	while (list >= 0 && found < 0 && (n = syscall(SYS_getdents64, list, text, sizeof text)) > 0)
		for (long at = 0; at < n && found < 0; at += ((struct dirent64 *)(text + at))->d_reclen) {
			const char *name = ((struct dirent64 *)(text + at))->d_name;
			if (*name != '.' && region_export_file(atoi(name)) == file)
				found = atoi(name);
		}
	if (list >= 0)
		close(list);
	return (int)found;
}

/* lent_descriptor returns a descriptor of this process of the file with a hash, or -1. */
static int lent_descriptor(uint64_t file)
{
	static int last; /* found last; atomic */
	int fd = __atomic_load_n(&last, __ATOMIC_RELAXED);
	if (region_export_file(fd) == file)
		return fd;
	for (fd = 0; fd < LENT_DESCRIPTORS && region_export_file(fd) != file; fd++)
		;
	if (fd == LENT_DESCRIPTORS)
		fd = lent_listed_descriptor(file);
	if (fd >= 0)
		__atomic_store_n(&last, fd, __ATOMIC_RELAXED);
	return fd;
}

/* lent_search searches the kernel's list of locks for a lock. Locks of open files are in it, whichever
 * process or PID namespace they are of. *listed becomes true if there is any such lock in it: this
 * process has one itself, so a list without one is not to be trusted. *sum becomes a checksum of the
 * list. */
static enum lent_answer lent_search(uint64_t lock, bool *listed, uint64_t *sum)
{
	static const char kind[] = ": OFDLCK ";
	char line[64], text[2048];
	size_t size = (size_t)snprintf(line, sizeof line, " %llu %llu\n", (unsigned long long)lock, (unsigned long long)lock), rest = 0;
	ssize_t n = -1;
	unsigned pieces = 0;
	bool found = false;
	int list = region_open_fd("/proc/locks", O_RDONLY, 0);
	*sum = 14695981039346656037u;
	while (list >= 0 && !found && pieces++ < LENT_PIECES && (n = read(list, text + rest, sizeof text - rest)) > 0) {
		size_t have = rest + (size_t)n;
		for (size_t i = rest; i < have; i++)
			*sum = (*sum ^ (unsigned char)text[i]) * 1099511628211u;
		found = memmem(text, have, line, size);
		*listed = *listed || memmem(text, have, kind, sizeof kind - 1);
		/* Keep the end of this piece: the line may begin in it and end in the next piece. */
		rest = have < sizeof line ? have : sizeof line;
		memmove(text, text + have - rest, rest);
	}
	if (list >= 0)
		close(list);
	return found ? LENT_OPEN : n != 0 ? LENT_UNKNOWN : LENT_CLOSED;
}

/* lent_ask_list asks by the kernel's list of locks whether an exported descriptor is open. The byte is
 * random, so the file need not be known. */
static enum lent_answer lent_ask_list(uint64_t lock)
{
	bool listed = false;
	uint64_t sum = 0, last;
	for (unsigned i = 0, equal = 0; i < LENT_READINGS && equal < LENT_EQUAL; i++) {
		last = sum;
		enum lent_answer answer = lent_search(lock, &listed, &sum);
		if (answer != LENT_CLOSED)
			return answer;
		equal = sum == last ? equal + 1 : 1;
	}
	return listed ? LENT_CLOSED : LENT_UNKNOWN;
}

/* lent_ask_file asks by a descriptor of the same file, if this process has one. A record lock conflicts
 * with the exported descriptors' locks even if the process that asks has these descriptors itself
 * (F_OFD_GETLK would not). */
static enum lent_answer lent_ask_file(uint64_t file, uint64_t lock)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)lock, .l_len = 1};
	int fd = file == RATION_EXPORT_FILES ? -1 : lent_descriptor(file);
	if (fd < 0 || fcntl(fd, F_GETLK, &l) || region_export_file(fd) != file)
		return LENT_UNKNOWN; /* also if another thread has closed the descriptor meanwhile */
	if (l.l_type == F_UNLCK)
		return LENT_CLOSED;
	/* Another lock, of a range, may hide ours: the kernel names only one. */
	return (uint64_t)l.l_start == lock && l.l_len == 1 ? LENT_OPEN : LENT_UNKNOWN;
}

/* lent_ask asks the kernel whether an exported descriptor is open, in any process or in a message. */
static enum lent_answer lent_ask(uint64_t file, uint64_t lock)
{
	if (lock < RATION_EXPORT_LOCK_FIRST)
		return LENT_UNKNOWN;
	if (!file)
		return LENT_CLOSED; /* no descriptor was made: the memory was exported by IPC handles */
	enum lent_answer answer = lent_ask_file(file, lock);
	return answer == LENT_UNKNOWN ? lent_ask_list(lock) : answer;
}

/* lent_imported returns whether a process has imported memory of the process that locked this byte, and
 * has not been charged for it. This process's own locks count, too. */
static enum lent_answer lent_imported(struct region *r, uint64_t lock)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)lock, .l_len = 1};
	if (lock < RATION_EXPORT_LOCK_FIRST)
		return LENT_CLOSED; /* importers do not know the byte */
	if (fcntl(region_fd(r), F_GETLK, &l))
		return LENT_UNKNOWN;
	return l.l_type == F_UNLCK ? LENT_CLOSED : LENT_OPEN;
}

bool region_imported(struct region *r, uint64_t lock)
{
	return lock && (lock < RATION_EXPORT_LOCK_FIRST || lent_imported(r, lock) != LENT_CLOSED);
}

/* lent_listed_pid returns the PID by which the driver lists a slot's owner, or 0 if that is not known. */
static uint64_t lent_listed_pid(const struct region *r, unsigned slot)
{
	const struct ration_slot *s = &r->m->slots[slot];
	uint64_t pid = host_pid_of(load_acquire(&s->host_pid));
	if (!pid && load_acquire(&r->m->header.nvml_pids) == make_nvml_pids(load_acquire(&s->pidns), true))
		pid = load_acquire(&s->pid);
	return pid;
}

uint64_t region_uncharged(struct region *r, unsigned device, uint32_t pid, uint64_t listed)
{
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		uint64_t status = load_acquire(&r->m->status[slot]);
		if (slot == r->slot || status_state(status) != RATION_SLOT_ACTIVE || lent_listed_pid(r, slot) != pid)
			continue;
		const struct ration_account *a = account(r, device, slot);
		uint64_t charged = load_acquire(&a->gen) == status_gen(status) ? used_units(load_acquire(&a->used)) * RATION_UNIT : 0;
		return listed > charged ? listed - charged : 0;
	}
	return 0;
}

/* lent_names returns true if the text has the lock of a byte, as the kernel lists it. */
static bool lent_names(const char *text, uint64_t lock)
{
	char line[64];
	snprintf(line, sizeof line, " %llu %llu\n", (unsigned long long)lock, (unsigned long long)lock);
	return strstr(text, line);
}

void region_find_exporters(struct region *r, int fd, void (*found)(uint64_t lock, unsigned device))
{
	char path[40], text[1024];
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
	/* If the kernel cannot be asked which lock the descriptor has, it may have any. */
	bool known = fd >= 0 && region_read_text(path, text, sizeof text) && strstr(text, "lock:");
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		uint64_t claim = load_acquire(&r->claim), status = load_acquire(&r->m->status[slot]);
		if (!status_holds(status) || make_claim(slot, status) == claim)
			continue;
		for (unsigned d = 0; d < RATION_DEVICES; d++) {
			/* Acquire: pairs with region_set_exports. The exporter set it before it gave the descriptor away. */
			uint64_t lock = load_acquire(&account(r, d, slot)->export_lock);
			if (lock >= RATION_EXPORT_LOCK_FIRST && (!known || lent_names(text, lock)))
				found(lock, d);
		}
	}
}

/* lent_map locks these bytes of the region through an open file that only the returned mapping keeps. A
 * fork child does not inherit it, as it takes no reading after which it could drop the locks. */
static void *lent_map(struct region *r, const uint64_t *locks, unsigned n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = region_file_again(r);
	if (fd < 0)
		return MAP_FAILED;
	while (n && region_export_lock(fd, locks[n - 1]) == REGION_OK)
		n--;
	void *mem = n ? MAP_FAILED : mmap(NULL, page, PROT_NONE, MAP_PRIVATE, fd, 0);
	if (mem != MAP_FAILED)
		madvise(mem, page, MADV_DONTFORK);
	close(fd);
	region_lock_own(r); /* the close has dropped this process's record lock */
	return mem;
}

bool region_show_imports(struct region *r, const uint64_t *locks, unsigned n)
{
	void *mem = n ? lent_map(r, locks, n) : NULL;
	if (mem == MAP_FAILED)
		return false;
	/* After the new locks are set: a byte in both sets is locked all the time. */
	if (r->imports)
		munmap(r->imports, (size_t)sysconf(_SC_PAGESIZE));
	r->imports = mem;
	return true;
}

bool region_lent_by(struct region *r, unsigned slot, uint64_t lock)
{
	uint64_t status = load_acquire(&r->m->status[slot]);
	for (unsigned d = 0; d < RATION_DEVICES && status_holds(status); d++) {
		const struct ration_account *a = account(r, d, slot);
		/* Acquire, in this order: pairs with region_set_exports. */
		if (load_acquire(&a->export_lock) == lock &&
		    (status_state(status) != RATION_SLOT_LENT || lent_ask(exported_file(load_acquire(&a->exported)), lock) != LENT_CLOSED))
			return true;
	}
	return false;
}

/* lent_neighbour returns true if a living process of the job is in the PID namespace of a slot's
 * dead owner, and so may have its descriptors. A process that has no slot yet has not opened the
 * driver's files: it leaves the answer to the next reaper. */
static bool lent_neighbour(struct region *r, unsigned dead)
{
	uint64_t claim = load_acquire(&r->claim), pidns = load_acquire(&r->m->slots[dead].pidns);
	if (!claim)
		return true;
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		uint64_t status = load_acquire(&r->m->status[slot]);
		if (slot != dead && status_state(status) == RATION_SLOT_ACTIVE && load_acquire(&r->m->slots[slot].pidns) == pidns &&
		    (make_claim(slot, status) == claim || !region_dead(r, slot, status)))
			return true;
	}
	return false;
}

uint64_t region_lent_units(struct region *r, unsigned device, unsigned slot, uint64_t status)
{
	const struct ration_account *a = account(r, device, slot);
	/* Acquire, in this order: pairs with region_set_exports. */
	uint64_t lock = load_acquire(&a->export_lock), exported = load_acquire(&a->exported);
	/* A maker that died before it set the lock has given no descriptor to its program. */
	if (!lock || !exported_units(exported) || load_acquire(&a->gen) != status_gen(status))
		return 0;
	enum lent_answer answer = lent_ask(exported_file(exported), lock);
	/* After the descriptors: an importer sets its lock while it has one. */
	if (answer == LENT_CLOSED)
		answer = lent_imported(r, lock);
	bool kept = answer == LENT_OPEN || (answer == LENT_UNKNOWN && lent_neighbour(r, slot));
	return kept ? exported_units(exported) : 0;
}
