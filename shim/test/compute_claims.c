/* What processes with a priority do with the file of claims: in which order they change their locks and
 * their slices, and what they do if the kernel's calls fail, or take long because another process holds
 * very many locks. The library's calls come through this program's own fcntl, and cost the CPU time that
 * the test says. */
#include <stdarg.h>

#include "priority.h"

/* Positions in the file: shim/compute/claims.c. */
enum { KIND_BITS = 42, KIND_LOW = 2, KIND_BUSY = 3 };
#define SEAT_SIZE ((off_t)1 << 32)

static unsigned calls;          /* to lock, unlock or ask */
static uint64_t call_ns;        /* what each takes */
static uint64_t timed_ns;       /* what the next one takes that is timed */
static int fails;               /* questions about this kind */
static off_t low_end, busy_end; /* of this process's claims */

static void check_order(const struct flock *l, unsigned kind)
{
	off_t *end = kind == KIND_LOW ? &low_end : &busy_end, now = (l->l_start + l->l_len) % SEAT_SIZE;
	if (l->l_type == F_RDLCK)
		*end = now;
	else if (l->l_len == SEAT_SIZE)
		*end = 0;
	/* The claim to be busy does not count for longer than the other one. */
	CHECK(busy_end <= low_end || l->l_type == F_UNLCK);
	/* A context with a short slice is of a process that claims to be busy. */
	CHECK(kind != KIND_BUSY || *end || slice_of(0) != SHORT);
}

__attribute__((visibility("default"))) int fcntl(int fd, int command, ...)
{
	va_list list;
	va_start(list, command);
	struct flock *l = va_arg(list, struct flock *);
	va_end(list);
	if ((command != F_SETLK && command != F_GETLK) || !machine_clock || l->l_start >> KIND_BITS == 0)
		return (int)syscall(SYS_fcntl, fd, command, l);
	unsigned kind = l->l_start >> KIND_BITS & 3;
	calls++;
	cpu_ns += call_ns;
	if (cpu_looks % 2) {
		cpu_ns += timed_ns;
		timed_ns = 0;
	}
	if (command == F_SETLK && kind >= KIND_LOW)
		check_order(l, kind);
	if (command == F_SETLK || (int)kind != fails)
		return (int)syscall(SYS_fcntl, fd, command, l);
	errno = ENOLCK;
	return -1;
}

/* Launches in a context of its own, as a thread that has not launched before. */
static void *launch_in_context(void *unused)
{
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(launch(kernel("one"), NULL));
	return unused;
}

/* Makes the next calls be timed, each of them. */
static void make_debt(void)
{
	for (timed_ns = 500 * US; timed_ns;)
		OK(cuCtxSynchronize());
	EQ(cpu_looks % 2, 0);
}

/* A worker: l launches, y waits for the device, w for a kernel that takes minutes, 1 to 3 change the
 * job's priority, m launches in 60 contexts more. s makes calls slow, q quick, t the next ones timed, k the
 * next timed one very slow, f makes questions about the busy fail. b begins to count calls; 0 checks that
 * there were none, and a that there were few. */
static int work(void)
{
	char step;
	start_timed();
	CUfunction f = kernel("one"), forever = kernel("long_one");
	EQ(write(1, "r", 1), 1);
	while (read(0, &step, 1) == 1) {
		pthread_t t;
		switch (step) {
		case 'l': OK(launch(f, NULL)); break;
		case 'w':
			OK(launch(forever, NULL));
			EQ(write(1, "w", 1), 1);
			OK(cuCtxSynchronize());
			break;
		case 'y': OK(cuCtxSynchronize()); break;
		case 'm':
			for (unsigned i = 0; i < 60; i++)
				EQ(pthread_create(&t, NULL, launch_in_context, NULL) | pthread_join(t, NULL), 0);
			break;
		case 's': call_ns = 300 * US; break;
		case 'q': call_ns = timed_ns = 0; break;
		case 't': make_debt(); break;
		case 'k': timed_ns = 2 * MS; break;
		case 'f': fails = KIND_BUSY; break;
		case 'b': calls = 0; break;
		case '0': EQ(calls, 0); break;
		case 'a': CHECK(calls > 0 && calls <= 3); break;
		default: EQ(region_limits_with(region_here(), change_priority, &(uint64_t){(uint64_t)(step - '0')}), 0);
		}
		EQ(write(1, "d", 1), 1);
	}
	return checks_failed > 0;
}

/* Many waits for a device whose work is done, all at the same time. */
static void waits(const struct worker *w)
{
	later(8 * MS);
	for (unsigned i = 0; i < 20; i++)
		tell(w, 'y', 'd');
}

/* A process for which the calls take long makes no more of them for 5 s, and then one that takes long.
 * When they are quick again, its priority is kept again. */
static void flood(void)
{
	struct worker low = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	tell(&high, 's', 'd');
	waits(&high);
	tell(&high, 'b', 'd');
	for (unsigned i = 0; i < 4; i++) {
		waits(&high);
		later(SECOND);
		EQ(slice(&high), HIGH);
	}
	tell(&high, '0', 'd');
	later(SECOND);
	waits(&high);
	EQ(slice(&high), HIGH);
	tell(&high, 'a', 'd');
	tell(&high, 'b', 'd');
	waits(&high);
	tell(&high, '0', 'd');
	later(6 * SECOND);
	EQ(slice(&low), OWN); /* the last claim has ended */
	tell(&high, 'q', 'd');
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	/* Such a job of low priority is like a normal one. */
	tell(&low, 's', 'd');
	for (unsigned i = 0; i < 20; i++)
		slice(&low);
	EQ(slice(&low), OWN);
	tell(&low, 'b', 'd');
	waits(&low);
	EQ(slice(&low), OWN);
	tell(&low, '0', 'd');
	tell(&low, 'q', 'd');
	later(5 * SECOND);
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	finish_worker(&low, false);
	finish_worker(&high, false);
}

/* A process that cannot renew its claim to be busy before it waits has no short slice while it waits: it
 * would have it beside another process. */
static void not_renewed(void)
{
	struct worker low = begin("low"), second = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	later(8 * MS);
	tell(&low, 't', 'd');
	EQ(slice(&low), SHORT);
	tell(&low, 'k', 'd');
	tell(&low, 'w', 'w');
	/* Until it waits. */
	for (unsigned i = 0; i < 1000 && books_of(0, low.pid, 0).slice_us == SHORT; i++)
		syscall(SYS_nanosleep, &(struct timespec){0, 10000000}, NULL);
	EQ(books_of(0, low.pid, 0).slice_us, OWN);
	later(250 * MS);
	EQ(slice(&second), SHORT);
	EQ(books_of(0, low.pid, 0).slice_us, OWN);
	finish_worker(&low, true);
	finish_worker(&second, false);
	finish_worker(&high, false);
}

/* A question that fails is no answer. */
static void unknown(void)
{
	struct worker low = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	tell(&low, 'f', 'd');
	EQ(slice(&low), SEVERAL);
	finish_worker(&low, false);
	finish_worker(&high, false);
}

/* The order of changes, with waits and with a change of the priority: check_order. */
static void order(void)
{
	struct worker low = begin("low"), second = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	for (unsigned i = 0; i < 6; i++) {
		EQ(slice(&low), SHORT);
		later(30 * MS);
		tell(&low, 'y', 'd');
		EQ(slice(&second), SHORT);
		later(30 * MS);
	}
	EQ(slice(&low), SHORT);
	tell(&low, '2', 'd');
	EQ(slice(&low), OWN);
	uint64_t begun = machine_now(0);
	EQ(slice(&second), SHORT);
	EQ(machine_now(0) - begun, 8 * MS);
	finish_worker(&low, false);
	finish_worker(&second, false);
	finish_worker(&high, false);
}

/* However many contexts a job of high priority has, none has a slice in which nothing gets done. */
static void many_contexts(void)
{
	struct worker high = begin("high");
	EQ(slice(&high), HIGH);
	tell(&high, 'm', 'd');
	EQ(slice(&high), SHORT);
	finish_worker(&high, false);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "work"))
		return work();
	start_timed();
	flood();
	not_renewed();
	unknown();
	order();
	many_contexts();
	return FINISH();
}
