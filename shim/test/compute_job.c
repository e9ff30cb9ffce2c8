/* One share, several processes: it is divided among those that have work, and one that waits
 * for its device has work, for as long as it lives. The processes do one step at a time, as
 * they are told, on a machine whose clock stands still meanwhile. */
#include <poll.h>

#include "compute.h"
#include "worker.h"

/* A worker: l launches, c launches what takes a millisecond, w waits for a kernel that takes long, f
 * forks a child, which stays until nobody tells the worker anything any more. */
static int work(void)
{
	char step;
	start_timed();
	CUfunction f = kernel("one"), forever = kernel("long_one"), one_ms = kernel("five");
	EQ(write(1, "r", 1), 1);
	while (read(0, &step, 1) == 1) {
		if (step == 'l')
			OK(launch(f, NULL));
		if (step == 'c')
			OK(launch(one_ms, NULL));
		if (step == 'f' && fork() == 0) {
			poll(&(struct pollfd){.fd = 0}, 1, -1);
			_exit(0);
		}
		if (step == 'w') {
			OK(launch(forever, NULL));
			EQ(write(1, "w", 1), 1);
			OK(cuCtxSynchronize());
		}
		EQ(write(1, "d", 1), 1);
	}
	return checks_failed > 0;
}

static struct worker begin(void) { return worker_begin((const char *const[]){NULL}); }

static uint64_t slice(const struct worker *w) { return books_of(0, w->pid, 0).slice_us; }

/* pass lets so many milliseconds pass, in each few of which a worker launches. */
static void pass(const struct worker *w, unsigned ms)
{
	for (unsigned i = 0; i < ms; i += 4) {
		later(4 * MS);
		tell(w, 'l', 'd');
	}
}

static void divide(void)
{
	struct worker w[4];
	for (int i = 0; i < 4; i++)
		w[i] = begin();
	later(10 * MS);
	tell(&w[0], 'l', 'd');
	EQ(slice(&w[0]), 6000); /* three idle ones cost nothing */
	for (int round = 0; round < 2; round++, later(5 * MS))
		for (int i = 0; i < 4; i++)
			tell(&w[i], 'l', 'd');
	for (int i = 0; i < 4; i++)
		EQ(slice(&w[i]), 1500);
	/* Two of them go on. */
	for (unsigned ms = 0; ms < RATION_WORK_LEASE_US / 1000 + 8; ms += 4) {
		later(4 * MS);
		tell(&w[0], 'l', 'd');
		tell(&w[1], 'l', 'd');
	}
	EQ(slice(&w[0]), 3000);
	EQ(slice(&w[1]), 3000);
	/* One leaves, and the last is alone. */
	finish_worker(&w[1], false);
	pass(&w[0], 8);
	EQ(slice(&w[0]), 6000);
	for (int i = 0; i < 4; i++)
		if (i != 1)
			finish_worker(&w[i], i == 3);
}

/* A process that waits counts for as long as it waits; and one that was killed while it waited
 * for no longer than a lease. */
static void wait_and_die(void)
{
	struct worker a = begin(), b = begin();
	uint64_t *reaped = &region_here()->m->header.counters.reaped, before = load_acquire(reaped);
	later(10 * MS);
	tell(&b, 'w', 'w');
	struct ration_account *account = account_of(0, b.pid);
	while (!work_waiting(load_acquire(&account->work)))
		sched_yield();
	/* It is no part of this that the engine does its work meanwhile. */
	pass(&a, RATION_WORK_LEASE_US / 1000 + 8);
	CHECK(work_time(load_acquire(&account->work)) + RATION_WORK_LEASE_US < machine_now(0) / US);
	EQ(slice(&a), 3000);
	finish_worker(&b, true);
	pass(&a, RATION_WORK_LEASE_US / 1000 + 8);
	EQ(slice(&a), 6000);
	EQ(load_acquire(reaped), before + 1); /* and with its work what it held */
	finish_worker(&a, false);
}

/* Two that wait for longer than a lease, again and again, have half of the share each: one that comes back from
 * a wait had work until then. */
static void long_waits(void)
{
	struct worker w[2] = {begin(), begin()};
	char said = 0;
	later(10 * MS);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2; i++) {
			tell(&w[i], 'w', 'w');
			while (!work_waiting(load_acquire(&account_of(0, w[i].pid)->work)))
				sched_yield();
		}
		if (round)
			for (int i = 0; i < 2; i++)
				EQ(slice(&w[i]), 3000);
		later(30 * SECOND); /* both are done */
		for (int i = 0; i < 2; i++) {
			EQ(read(w[i].from, &said, 1), 1);
			EQ(said, 'd');
		}
	}
	for (int i = 0; i < 2; i++)
		finish_worker(&w[i], false);
}

/* One that was killed while it waited, and whose fork child keeps what it held, waits no longer: at none
 * of the looks that follow. */
static void outlive(void)
{
	struct worker a = begin(), b = begin();
	int status;
	later(10 * MS);
	tell(&b, 'f', 'd');
	tell(&b, 'w', 'w');
	struct ration_account *account = account_of(0, b.pid);
	while (!work_waiting(load_acquire(&account->work)))
		sched_yield();
	pass(&a, 8);
	EQ(slice(&a), 3000);
	kill(b.pid, SIGKILL);
	waitpid(b.pid, &status, 0);
	pass(&a, 2 * RATION_WORK_LEASE_US / 1000);
	CHECK(work_waiting(load_acquire(&account->work))); /* it was not reaped */
	for (unsigned look = 0; look < 2 * RATION_WORK_LEASE_US / 8000; look++) {
		pass(&a, 8);
		EQ(slice(&a), 6000);
	}
	close(b.to); /* which ends the child */
	/* Only then does the engine drop b's kernel: the next part would have three long kernels, and no time for the third. */
	while (books_of(0, b.pid, 0).live)
		sched_yield();
	close(b.from);
	finish_worker(&a, false);
}

/* One cap, several processes: together they get it, however often each launches, and a process that is
 * alone gets all of it. Workers launch in turn, each as often in a round as it says; gap passes after
 * each launch. */
static void cap_of(const struct worker *w, const unsigned *often, unsigned workers, uint64_t gap)
{
	const double cap = 60;
	uint64_t since = machine_now(0), before = occupied();
	while (machine_now(0) - since < 5 * SECOND)
		for (unsigned i = 0; i < workers; i++)
			for (unsigned n = 0; n < often[i]; n++) {
				tell(&w[i], 'c', 'd');
				later(gap);
			}
	double percent = 100.0 * (double)(occupied() - before) / (double)(machine_now(0) - since);
	if (percent < cap - 2 || percent > cap + 2)
		fprintf(stderr, "%u processes got %.1f %%, not %.1f\n", workers, percent, cap);
	CHECK(percent >= cap - 2 && percent <= cap + 2);
}

static void together(void)
{
	struct worker w[3];
	set_compute(0, RATION_COMPUTE_NONE, 60);
	for (int i = 0; i < 3; i++)
		w[i] = begin();
	later(SECOND);
	cap_of(w, (const unsigned[]){1}, 1, 0);
	cap_of(w, (const unsigned[]){1, 1}, 2, 0);
	cap_of(w, (const unsigned[]){5, 1, 1}, 3, 0);
	cap_of(&w[1], (const unsigned[]){1}, 1, 0);
	/* They hand on to one another, and never have work at the same time. */
	cap_of(w, (const unsigned[]){1, 1}, 2, 1200 * US);
	for (int i = 0; i < 3; i++)
		finish_worker(&w[i], i == 2);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return work();
	OK(cuInit(0));
	machine_clock = true;
	divide();
	wait_and_die();
	outlive();
	long_waits();
	together();
	return FINISH();
}
