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
static __thread bool not_busy;  /* this thread's claims to be busy fail */
static off_t low_end, busy_end; /* of this process's claims */

/* Where the thread that is to stop does so, until the other one is done, or waits for it. */
enum { NOWHERE, AHEAD, THERE, PAST };
static struct {
	int command;
	short type;
	unsigned kind;
	int state; /* atomic */
} stop;
static __thread bool stops;
static pthread_mutex_t stop_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stop_changed = PTHREAD_COND_INITIALIZER;

static int stop_state(void) { return __atomic_load_n(&stop.state, __ATOMIC_ACQUIRE); }

static void stop_becomes(int state, int unless)
{
	pthread_mutex_lock(&stop_lock);
	if (stop_state() != unless)
		__atomic_store_n(&stop.state, state, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&stop_changed);
	pthread_mutex_unlock(&stop_lock);
}

static void stop_until(int state)
{
	pthread_mutex_lock(&stop_lock);
	while (stop_state() < state)
		pthread_cond_wait(&stop_changed, &stop_lock);
	pthread_mutex_unlock(&stop_lock);
}

static void may_stop(int command, short type, unsigned kind)
{
	if (!stops || stop_state() != AHEAD || stop.command != command || stop.type != type || stop.kind != kind)
		return;
	stop_becomes(THERE, PAST);
	stop_until(PAST);
}

/* A thread that waits for another one yields first. */
__attribute__((visibility("default"))) int sched_yield(void)
{
	if (!stops && stop_state() == THERE)
		stop_becomes(PAST, PAST);
	return (int)syscall(SYS_sched_yield);
}

static void check_order(const struct flock *l, unsigned kind)
{
	off_t *end = kind == KIND_LOW ? &low_end : &busy_end, now = (l->l_start + l->l_len) % SEAT_SIZE;
	CHECK(busy_end || slice_of(0) != SHORT);
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
	if (command == F_SETLK ? l->l_type == F_RDLCK && kind == KIND_BUSY && not_busy : (int)kind == fails) {
		errno = ENOLCK;
		return -1;
	}
	short type = l->l_type;
	if (command == F_SETLK)
		may_stop(command, type, kind);
	if (command == F_SETLK && kind >= KIND_LOW)
		check_order(l, kind);
	int result = (int)syscall(SYS_fcntl, fd, command, l);
	if (command == F_GETLK)
		may_stop(command, type, kind);
	return result;
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

static CUcontext context;
static CUfunction quick;

static void *launch_and_stop(void *fails_too)
{
	stops = true;
	not_busy = fails_too != NULL;
	OK(cuCtxSetCurrent(context));
	OK(launch(quick, NULL));
	stop_becomes(PAST, PAST);
	return NULL;
}

/* One thread launches and stops at a call, and this one launches meanwhile, after a change. */
static void beside(int command, short type, unsigned kind, void *fails_too, void (*change)(void))
{
	pthread_t t;
	stop.command = command;
	stop.type = type;
	stop.kind = kind;
	stop_becomes(AHEAD, AHEAD);
	EQ(pthread_create(&t, NULL, launch_and_stop, fails_too), 0);
	stop_until(THERE);
	EQ(stop_state(), THERE);
	change();
	OK(launch(quick, NULL));
	stop_becomes(PAST, PAST);
	EQ(pthread_join(t, NULL), 0);
	stop_becomes(NOWHERE, NOWHERE);
	not_busy = false;
	/* Whatever the order was. */
	CHECK(busy_end || slice_of(0) != SHORT);
	CHECK(busy_end <= low_end);
}

static void a_look_later(void) { later(8 * MS); }

static void renewal_fails(void)
{
	later(150 * MS);
	not_busy = true;
}

static void becomes_normal(void)
{
	later(8 * MS);
	EQ(region_limits_with(region_here(), change_priority, &(uint64_t){RATION_PRIORITY_NORMAL}), 0);
}

/* A worker: l launches, y waits for the device, w for a kernel that takes minutes, 1 to 3 change the
 * job's priority, m launches in 60 contexts more. s makes calls slow, q quick, t the next ones timed, k the
 * next timed one very slow, f makes questions about the busy fail. D, S and R are two threads: one gives the
 * claim to be busy back, sets a short slice, or renews the claim, when the other one claims it, gives it back, or
 * gives all claims back. b begins to count calls; 0 checks that
 * there were none, and a that there were few. */
static int work(void)
{
	char step;
	start_timed();
	CUfunction f = quick = kernel("one"), forever = kernel("long_one");
	OK(cuCtxGetCurrent(&context));
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
		case 'D': beside(F_SETLK, F_UNLCK, KIND_BUSY, &t, a_look_later); break;
		case 'S': beside(F_GETLK, F_WRLCK, KIND_BUSY, NULL, renewal_fails); break;
		case 'R': beside(F_SETLK, F_RDLCK, KIND_BUSY, NULL, becomes_normal); break;
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

/* The position of a process's claim to be busy, from a position to another; 0: none. The kernel tells of any lock there. */
static off_t find_busy(int fd, pid_t pid, off_t from, off_t to)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = to - from};
	off_t found;
	if (from >= to || syscall(SYS_fcntl, fd, F_GETLK, &l) != 0 || l.l_type == F_UNLCK)
		return 0;
	if (l.l_pid == pid && l.l_len > 1 && (l.l_start >> KIND_BITS & 3) == KIND_BUSY)
		return l.l_start;
	return (found = find_busy(fd, pid, from, l.l_start)) ? found : find_busy(fd, pid, l.l_start + l.l_len, to);
}

/* A lock of a process that was there first, on the seat of another one's claim, hides that claim from everybody else. What
 * may be behind it is not known: no second process has a short slice. */
static void hidden(void)
{
	char path[4200];
	snprintf(path, sizeof path, "%s/priority", getenv("RATION_DIR"));
	int fd = open(path, O_CREAT | O_RDONLY | O_CLOEXEC, 0444);
	struct flock first = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 1}, over;
	EQ(syscall(SYS_fcntl, fd, F_SETLK, &first), 0);
	struct worker low = begin("low"), second = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	off_t seat = find_busy(fd, low.pid, 0, INT64_MAX);
	struct flock claim = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = seat, .l_len = 1};
	EQ(syscall(SYS_fcntl, fd, F_GETLK, &claim), 0);
	EQ(claim.l_pid, low.pid);
	/* From a place where no claim begins; to the end of the file; and for longer than a claim counts. */
	const off_t ranges[][2] = {{5000, SEAT_SIZE - 5001}, {0, 0}, {0, claim.l_len + 7200000}};
	for (unsigned i = 0; i < 3; i++) {
		over = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = seat + ranges[i][0], .l_len = ranges[i][1]};
		EQ(syscall(SYS_fcntl, fd, F_SETLK, &over), 0);
		slice(&low);
		EQ(slice(&second), SEVERAL);
		EQ(slice(&low), SEVERAL);
		over.l_type = F_UNLCK;
		EQ(syscall(SYS_fcntl, fd, F_SETLK, &over), 0);
	}
	close(fd);
	finish_worker(&low, false);
	finish_worker(&second, false);
	finish_worker(&high, false);
}

/* The first worker has normal priority now. The second need not wait for it. */
static void finish_without(struct worker *first, struct worker *second, struct worker *high)
{
	uint64_t begun = machine_now(0);
	EQ(slice(second), SHORT);
	EQ(machine_now(0) - begun, 8 * MS);
	finish_worker(first, false);
	finish_worker(second, false);
	finish_worker(high, false);
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
	finish_without(&low, &second, &high);
}

/* Threads of one process that change its claims at the same time. */
static void dropped_beside(void)
{
	struct worker low = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	later(150 * MS);
	tell(&low, 'D', 'd');
	EQ(slice(&low), SHORT);
	later(8 * MS);
	tell(&low, 'S', 'd');
	EQ(slice(&low), SHORT);
	later(150 * MS);
	tell(&low, 'R', 'd');
	EQ(slice(&low), OWN);
	struct worker second = begin("low");
	finish_without(&low, &second, &high);
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
	hidden();
	order();
	dropped_beside();
	many_contexts();
	return FINISH();
}
