#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atomics.h"
#include "knobs.h"
#include "report.h"
#include "share.h"

enum { NO_SLOT = MAX_PROCESSES };

static struct state_file machine_file = {.lock_fd = -1, .own_fd = -1};
static unsigned machine_own_slot = NO_SLOT;
static struct ledger machine_ledgers[MAX_DEVICES];

/* Threads of this process take turns: at the machine's lock (which is the whole
 * process's), and at their record's account of a device. */
static pthread_mutex_t machine_attach_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	pthread_mutex_t lock;
	char pad[64 - sizeof(pthread_mutex_t) % 64];
} machine_turn[MAX_DEVICES];

static struct ledger_account *machine_account(unsigned s, unsigned device) { return &machine_file.map->record[s].account[device]; }

/* The first number after a label in /proc/self/status, or 0. */
static uint32_t machine_status_number(const char *label)
{
	char line[256];
	uint32_t n = 0;
	FILE *f = fopen("/proc/self/status", "re");
	if (f == NULL)
		return 0;
	while (fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, label, strlen(label)) == 0) {
			n = (uint32_t)strtoul(line + strlen(label), NULL, 10);
			break;
		}
	fclose(f);
	return n;
}

/* The start time of a process, or 0 if it is gone or a zombie; and whether it is about to
 * be one, and may have no mapping left. */
static uint64_t machine_start_time(uint32_t pid, bool *ending)
{
	enum { EXITING = 0x4 }; /* among the kernel's flags of a process */
	char path[32], text[1024];
	unsigned long long start = 0, flags = 0, threads = 0;
	char state = 'Z';
	char *after;
	size_t n;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%u/stat", pid);
	f = fopen(path, "re");
	if (f == NULL)
		return 0;
	n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = '\0';
	after = strrchr(text, ')'); /* the name may hold anything */
	if (after == NULL || sscanf(after + 1, " %c %*d %*d %*d %*d %*d %llu %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %llu %*d %llu", &state,
				    &flags, &threads, &start) != 4)
		return 0;
	*ending = flags & EXITING;
	return (state == 'Z' || state == 'X') && threads <= 1 ? 0 : start;
}

static uint64_t machine_pid_namespace(void)
{
	struct stat st;
	return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

/* Returns true if a process has mapped the machine's file at the address in its record, or if we
 * may not read its maps. */
static bool machine_mapped_by(const struct record *r)
{
	char name[32], line[256];
	bool found = false, begins = true;
	struct stat st;
	FILE *f;

	snprintf(name, sizeof name, "/proc/%u/maps", r->pid);
	f = fopen(name, "re");
	if (f == NULL || fstat(machine_file.lock_fd, &st) != 0)
		found = true;
	while (!found && fgets(line, sizeof line, f) != NULL) {
		unsigned long long at, inode;
		found = begins && sscanf(line, "%llx-%*x %*s %*x %*s %llu", &at, &inode) == 2 && at == r->map && inode == st.st_ino;
		begins = strchr(line, '\n') != NULL; /* names may be longer than a line of ours */
	}
	if (f != NULL)
		fclose(f);
	return found;
}

/* Returns true if the process of a record is dead and a driver would have freed its memory. A
 * driver frees it when the process's files are released: while it ends, before it is a zombie; or
 * when the last of its fork children has closed them, too.
 *
 * Ask for the lock first: the kernel answers, and the answer is right across namespaces. A living
 * program that closes all descriptors drops the lock, so ask about the process too, if its PID is
 * of our namespace. A process that called exec has the same PID and start time, but not the
 * mapping. A process that claims a record knows that any other record with its PID is from before
 * an exec, even if a child that was made without our hooks still shares the lock. */
static bool machine_is_dead(unsigned s, uint64_t our_namespace, bool claims)
{
	const struct record *r = &machine_file.map->record[s];
	bool ours = claims && r->pid == (uint32_t)getpid() && r->pid_namespace == our_namespace, ending = false;
	if (s == machine_own_slot || (!ours && state_owned(&machine_file, s)))
		return false;
	if (ours || r->pid_namespace != our_namespace || r->start_time == 0 || machine_start_time(r->pid, &ending) != r->start_time)
		return true;
	/* In this order: mappings go before the rest. */
	return !machine_mapped_by(r) && (machine_start_time(r->pid, &ending) != r->start_time || !ending);
}

static void machine_reap_locked(bool claims)
{
	uint64_t ns = machine_pid_namespace();
	uint64_t high = load_relaxed(&machine_file.map->high);

	for (unsigned s = 0; s < high; s++) {
		struct record *r = &machine_file.map->record[s];
		if (load_acquire(&r->state) != RECORD_LIVE || !machine_is_dead(s, ns, claims))
			continue;
		for (unsigned d = 0; d < machine_file.shape.devices; d++)
			ledger_reap(&machine_ledgers[d], s);
		store_release(&r->state, RECORD_FREE);
	}
	share_settle(&machine_file);
}

/* How long to wait for the machine's lock: some milliseconds; so long that only a process that was
 * stopped can have it; for ever. */
enum machine_wait { WAIT_SHORT = 1, WAIT_LONG = 400, WAIT_EVER = 0 };

/* Takes the machine's lock, and returns the bytes that no process can reach any more. It returns
 * false if it gave up waiting; machine_end follows in any case. */
static bool machine_begin(enum machine_wait wait)
{
	pthread_mutex_lock(&machine_attach_lock);
	bool locked = machine_file.map != NULL && state_lock(&machine_file, wait == WAIT_EVER);
	for (int i = 1; i < (int)wait && machine_file.map != NULL && !locked; i++)
		locked = state_lock(&machine_file, false);
	if (locked)
		machine_reap_locked(machine_own_slot != NO_SLOT);
	return locked;
}

static void machine_end(bool locked)
{
	if (locked)
		state_unlock(&machine_file);
	pthread_mutex_unlock(&machine_attach_lock);
}

void machine_reap(void) { machine_end(machine_begin(WAIT_SHORT)); }

/* Sets the clock's rate and the cost of a switch, which all processes share. The last process that
 * has them set decides. A process that has not, and is the only one, sets the defaults. */
static void machine_set_time(void)
{
	struct state *m = machine_file.map;
	bool alone = true;
	for (unsigned s = 0; s < m->high && alone; s++)
		alone = load_acquire(&m->record[s].state) != RECORD_LIVE;
	if (knobs()->clock_set || alone) {
		uint64_t rate = knobs()->clock_set ? knobs()->clock : CLOCK_RATE;
		if (rate != clock_rate(&m->clock))
			clock_set(&m->clock, rate, 0);
	}
	if (knobs()->switch_set || alone)
		store_relaxed(&m->switch_ns, knobs()->switch_set ? knobs()->switch_ns : ENGINE_SWITCH);
	if (knobs()->resume_set || alone)
		store_relaxed(&m->resume_ns, knobs()->resume_ns);
}

static int machine_claim_locked(void)
{
	bool ending;
	machine_reap_locked(true);
	machine_set_time();
	for (unsigned s = 0; s < MAX_PROCESSES; s++) {
		struct record *r = &machine_file.map->record[s];
		if (load_acquire(&r->state) != RECORD_FREE || !state_own(&machine_file, s))
			continue;
		r->pid = (uint32_t)getpid();
		r->outer_pid = machine_status_number("NSpid:");
		if (r->outer_pid == 0)
			r->outer_pid = r->pid;
		r->start_time = machine_start_time(r->pid, &ending);
		r->pid_namespace = machine_pid_namespace();
		r->identity = ++machine_file.map->claims;
		r->map = (uintptr_t)machine_file.map;
		r->hidden = knobs()->hidden;
		r->letterbox = (struct letterbox){0};
		snprintf(r->name, sizeof r->name, "%s", program_invocation_name);
		if (machine_file.map->high < s + 1)
			store_relaxed(&machine_file.map->high, s + 1);
		store_release(&r->state, RECORD_LIVE);
		machine_own_slot = s;
		return 0;
	}
	report_note("all %d process records are taken", MAX_PROCESSES);
	return -1;
}

static int machine_claim(void)
{
	int r = -1;
	if (!state_lock(&machine_file, true))
		return -1;
	if (state_current(&machine_file))
		r = machine_claim_locked();
	else
		r = 1; /* replaced between our opening it and now */
	state_unlock(&machine_file);
	return r;
}

static int machine_open(void)
{
	if (state_open(&machine_file) != 0)
		return -1;
	for (unsigned d = 0; d < MAX_DEVICES; d++) {
		machine_ledgers[d] = (struct ledger){&machine_file.map->device[d], machine_account, d};
		pthread_mutex_init(&machine_turn[d].lock, NULL);
	}
	return 0;
}

int machine_attach(bool want_slot)
{
	int r = 0;
	pthread_mutex_lock(&machine_attach_lock);
	if (machine_file.map != NULL && machine_own_slot == NO_SLOT && !state_current(&machine_file))
		state_close(&machine_file);
	do {
		if (r > 0)
			state_close(&machine_file);
		r = machine_file.map == NULL ? machine_open() : 0;
		if (r == 0 && want_slot && machine_own_slot == NO_SLOT)
			r = machine_claim();
	} while (r > 0);
	pthread_mutex_unlock(&machine_attach_lock);
	return r;
}

void machine_forked(void)
{
	pthread_mutex_init(&machine_attach_lock, NULL);
	/* The descriptor that locks the record behaves like the driver's descriptors: a child that
	 * has inherited it keeps the parent's memory after the parent's death, until the child
	 * closes it or calls exec. */
	machine_file.own_fd = -1;
	machine_own_slot = NO_SLOT;
	state_close(&machine_file);
}

const struct shape *machine_shape(void) { return &machine_file.shape; }
unsigned machine_presents(void) { return machine_file.presents; }
unsigned machine_present(unsigned number) { return machine_file.present[number]; }
uint64_t machine_capacity(unsigned device) { return machine_file.shape.bytes - machine_reserved(device); }
uint64_t machine_reserved(unsigned device)
{
	(void)device;
	return machine_file.shape.reserved;
}

static bool machine_change(unsigned device, enum kind kind, int64_t units)
{
	struct ledger_account *a = machine_account(machine_own_slot, device);
	bool ok;

	pthread_mutex_lock(&machine_turn[device].lock);
	ok = ledger_change(&machine_ledgers[device], machine_own_slot, units);
	if (ok)
		store_relaxed(&a->kind[kind], load_relaxed(&a->kind[kind]) + (uint64_t)(units * LEDGER_UNIT));
	pthread_mutex_unlock(&machine_turn[device].lock);
	return ok;
}

bool machine_charge(unsigned device, enum kind kind, uint64_t bytes)
{
	uint64_t units = ledger_units(bytes);

	if (units > machine_capacity(device) / LEDGER_UNIT)
		return false;
	if (machine_change(device, kind, (int64_t)units))
		return true;
	machine_reap();
	return machine_change(device, kind, (int64_t)units);
}

void machine_return(unsigned device, enum kind kind, uint64_t bytes) { machine_change(device, kind, -(int64_t)ledger_units(bytes)); }

uint64_t machine_context(unsigned device, int by)
{
	return add_relaxed(&machine_account(machine_own_slot, device)->contexts, (uint64_t)(int64_t)by);
}

/* Readers hold the machine's lock: while memory goes from an account to a record, it is in both. */
void machine_put_aside(struct aside *aside)
{
	for (unsigned d = 0; d < machine_file.shape.devices; d++) {
		struct ledger_account *a = machine_account(machine_own_slot, d);
		aside->contexts[d] = load_relaxed(&a->contexts);
		machine_context(d, -(int)aside->contexts[d]);
		for (enum kind k = 0; k < KIND_COUNT; k++) {
			aside->bytes[d][k] = load_relaxed(&a->kind[k]);
			machine_return(d, k, aside->bytes[d][k]);
		}
	}
}

bool machine_take_back(const struct aside *aside)
{
	for (unsigned d = 0; d < machine_file.shape.devices; d++) {
		machine_context(d, (int)aside->contexts[d]);
		for (enum kind k = 0; k < KIND_COUNT; k++)
			if (aside->bytes[d][k] > 0 && !machine_charge(d, k, aside->bytes[d][k]))
				return false;
	}
	return true;
}

struct letterbox *machine_own_letterbox(void) { return &machine_file.map->record[machine_own_slot].letterbox; }

struct letterbox *machine_letterbox(uint32_t pid, unsigned *slot, uint64_t *identity)
{
	uint64_t ns = machine_pid_namespace();
	machine_reap();
	for (unsigned s = 0; s < load_relaxed(&machine_file.map->high); s++) {
		struct record *r = &machine_file.map->record[s];
		if (load_acquire(&r->state) != RECORD_LIVE || r->pid != pid || r->pid_namespace != ns)
			continue;
		*slot = s;
		*identity = r->identity;
		return &r->letterbox;
	}
	return NULL;
}

/* machine_shared returns what share_sum does. It is called after the words of processes were read: a
 * descriptor needs no lock to be closed, and another process may have its bytes by then. */
static uint64_t machine_shared(unsigned device, unsigned slot, bool locked)
{
	if (locked)
		share_settle(&machine_file);
	return share_sum(&machine_file, device, slot);
}

uint64_t machine_used(unsigned device)
{
	bool locked = machine_begin(WAIT_LONG);
	uint64_t sum = ledger_total(&machine_ledgers[device]);
	sum += machine_shared(device, SHARE_ALL, locked);
	machine_end(locked);
	return sum;
}

/* A change reaches the device's word before the account: a reader that compares the device with its
 * processes would find less in the word than in the accounts, as long as a process is stopped between. */
uint64_t machine_booked(unsigned device)
{
	bool locked = machine_begin(WAIT_LONG);
	uint64_t sum = 0;
	for (unsigned s = 0; s < load_relaxed(&machine_file.map->high); s++)
		if (load_acquire(&machine_file.map->record[s].state) == RECORD_LIVE)
			sum += ledger_used(&machine_ledgers[device], s);
	sum += machine_shared(device, SHARE_ALL, locked);
	machine_end(locked);
	return sum;
}

uint64_t machine_mine(unsigned device)
{
	if (machine_own_slot == NO_SLOT)
		return 0;
	bool locked = machine_begin(WAIT_LONG);
	uint64_t sum = ledger_used(&machine_ledgers[device], machine_own_slot);
	sum += machine_shared(device, machine_own_slot, locked);
	machine_end(locked);
	return sum;
}

uint64_t machine_kind(unsigned device, enum kind kind, bool all)
{
	if (!all && machine_own_slot == NO_SLOT)
		return 0;
	bool locked = machine_begin(WAIT_LONG);
	unsigned first = all ? 0 : machine_own_slot, end = all ? (unsigned)load_relaxed(&machine_file.map->high) : first + 1;
	uint64_t sum = 0;
	for (unsigned s = first; s < end; s++)
		sum += load_relaxed(&machine_account(s, device)->kind[kind]);
	sum += kind == KIND_DATA ? machine_shared(device, all ? SHARE_ALL : first, locked) : 0;
	machine_end(locked);
	return sum;
}

/* Until the bytes are out of the account, a process that asks for the last ones of the device waits
 * for the lock, and asks again. */
int machine_share(unsigned device, uint64_t bytes)
{
	bool locked = machine_begin(WAIT_EVER);
	int number = locked ? share_make(&machine_file, machine_own_slot, device, bytes) : -1;
	if (number >= 0)
		machine_return(device, KIND_DATA, bytes);
	machine_end(locked);
	return number;
}

int machine_share_export(unsigned number, bool dma_buf)
{
	bool locked = machine_begin(WAIT_EVER);
	int fd = !locked ? -1 : dma_buf ? state_dma_buf_new(number) : state_share_new(number);
	if (fd >= 0 && dma_buf)
		machine_file.map->share[number].dma_bufs++;
	machine_end(locked);
	return fd;
}

int machine_share_import(int fd, unsigned *device, uint64_t *bytes)
{
	bool locked = machine_begin(WAIT_EVER);
	int number = locked ? state_share_of(&machine_file, fd) : -1;
	if (number >= 0 && !share_import(&machine_file, (unsigned)number, machine_own_slot))
		number = -1;
	if (number >= 0) {
		*device = machine_file.map->share[number].device;
		*bytes = machine_file.map->share[number].bytes;
	}
	machine_end(locked);
	return number;
}

uint64_t machine_share_serial(unsigned number)
{
	bool locked = machine_begin(WAIT_EVER);
	uint64_t serial = machine_file.map->share[number].serial;
	machine_end(locked);
	return serial;
}

int machine_share_open(uint64_t serial)
{
	unsigned number;
	bool locked = machine_begin(WAIT_EVER);
	bool found = locked && share_open(&machine_file, serial, machine_own_slot, &number);
	machine_end(locked);
	return found ? (int)number : -1;
}

void machine_share_drop(unsigned number, bool maker)
{
	bool locked = machine_begin(WAIT_EVER);
	if (locked)
		share_drop(&machine_file, number, machine_own_slot, maker);
	machine_end(locked);
}

struct share_parts machine_share_parts(unsigned device)
{
	bool locked = machine_begin(WAIT_LONG);
	struct share_parts p = share_parts(&machine_file, device, machine_own_slot);
	machine_end(locked);
	return p;
}

unsigned machine_slot(void) { return machine_own_slot; }
uint64_t machine_identity(void) { return machine_own_slot == NO_SLOT ? 0 : machine_file.map->record[machine_own_slot].identity; }

bool machine_alive(unsigned s, uint64_t identity)
{
	bool alive;
	if (s >= MAX_PROCESSES)
		return false;
	machine_reap();
	alive = load_acquire(&machine_file.map->record[s].state) == RECORD_LIVE;
	return alive && machine_file.map->record[s].identity == identity;
}

bool machine_gone(unsigned s, uint64_t identity)
{
	const struct record *r = &machine_file.map->record[s];
	return load_acquire(&r->state) != RECORD_LIVE || r->identity != identity || machine_is_dead(s, machine_pid_namespace(), false);
}

struct clock *machine_clock(void) { return &machine_file.map->clock; }
struct engine *machine_engine(unsigned device) { return &machine_file.map->engine[device]; }
struct engine_costs machine_costs(void)
{
	return (struct engine_costs){load_relaxed(&machine_file.map->switch_ns), load_relaxed(&machine_file.map->resume_ns)};
}
uint32_t machine_pid(void) { return machine_file.map->record[machine_own_slot].outer_pid; }

int machine_control(void)
{
	pthread_mutex_lock(&machine_attach_lock);
	int fd = state_control();
	pthread_mutex_unlock(&machine_attach_lock);
	return fd;
}

void machine_add_time(uint64_t ns)
{
	pthread_mutex_lock(&machine_attach_lock);
	if (state_lock(&machine_file, true)) {
		clock_set(&machine_file.map->clock, clock_rate(&machine_file.map->clock), ns);
		state_unlock(&machine_file);
	}
	pthread_mutex_unlock(&machine_attach_lock);
}

unsigned machine_processes(unsigned device, struct process_info *out, unsigned max)
{
	unsigned n = 0;
	bool locked = machine_begin(WAIT_LONG);
	for (unsigned s = 0; s < load_relaxed(&machine_file.map->high); s++) {
		const struct record *r = &machine_file.map->record[s];
		const struct ledger_account *a = &r->account[device];
		if (load_acquire(&r->state) != RECORD_LIVE || load_relaxed(&a->contexts) == 0)
			continue;
		if (n < max) {
			out[n] = (struct process_info){.slot = s,
						       .pid = r->outer_pid,
						       .hidden = r->hidden,
						       .contexts = load_relaxed(&a->contexts),
						       .used = ledger_used(&machine_ledgers[device], s) +
							       share_sum(&machine_file, device, s)};
			memcpy(out[n].name, r->name, sizeof out[n].name);
			out[n].name[sizeof out[n].name - 1] = '\0';
		}
		n++;
	}
	machine_end(locked);
	return n;
}
