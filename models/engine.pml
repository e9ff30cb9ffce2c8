/* The books of the stand-in driver's engine (fakegpu/engine.h): two copies and a word that says which one is true.
 *
 * Processes take the lock, copy the true books into the others, run the engine from the instant that these know to now,
 * submit a piece of work or not, name the copy as the true one, and let go of the lock. The clock goes on
 * meanwhile. A process dies before any step, and the kernel lets go of what it has locked. One context; each piece
 * of work takes one tick. The times at which entries are reached are stored in place, beside the copies.
 *
 * Whoever has the lock finds true books in which every tick is counted once, and in every entry that they call reached
 * the time at which it was: when the one before it was done, or when it was submitted, and one tick more.
 */

#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef ROUNDS
#define ROUNDS 2		/* of each */
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef TICKS
#define TICKS 3
#endif
#define ENTRIES 2

typedef books { byte now; byte idle; byte submitted; byte done; byte tail; byte head };

books copy[2];
bit truth;
byte end[ENTRIES], at[ENTRIES];
byte clock;
bool locked;

/* Not in the file: when each entry has to be reached, and how many may die yet. */
byte due[ENTRIES];
byte deaths = DEATHS;
byte over;

#ifdef IN_PLACE
#define other truth
#else
#define other (1 - truth)
#endif

#define step(s) if :: s :: atomic { deaths > 0 -> deaths--; goto dead } fi

inline look()
{
	d_step {
		assert(copy[truth].now == copy[truth].idle + copy[truth].done);
		assert(copy[truth].done <= copy[truth].submitted && copy[truth].head <= copy[truth].tail);
		i = 0;
		do
		:: i < copy[truth].tail ->
			assert((i < copy[truth].head) == (end[i] <= copy[truth].done));
			assert(i >= copy[truth].head || at[i] == due[i]);
			i++
		:: else -> break
		od;
		i = 0
	}
}

proctype process()
{
	byte rounds = ROUNDS, now, i;
	bit d;
	bool submits;

	do
	:: rounds > 0 ->
		rounds--;
		atomic { !locked -> locked = true };
		look();
		d = other;
#ifndef STALE
		step(copy[d].now = copy[truth].now);
		step(copy[d].idle = copy[truth].idle);
		step(copy[d].submitted = copy[truth].submitted);
		step(copy[d].done = copy[truth].done);
		step(copy[d].tail = copy[truth].tail);
		step(copy[d].head = copy[truth].head);
#endif
#ifdef NAMED_FIRST
		step(truth = d);
#endif
		now = clock;
		do
		:: copy[d].now < now && copy[d].done < copy[d].submitted ->
			step(copy[d].done = copy[d].done + 1);
			step(copy[d].now = copy[d].now + 1);
			step(at[copy[d].head] = copy[d].now);	/* each entry is one tick of work */
			step(copy[d].head = copy[d].head + 1)
		:: copy[d].now < now && copy[d].done == copy[d].submitted ->
			step(copy[d].idle = copy[d].idle + 1);
			step(copy[d].now = copy[d].now + 1)
		:: else -> break
		od;
		submits = false;
		if
		:: copy[d].tail < ENTRIES ->
			step(copy[d].submitted = copy[d].submitted + 1);
			step(end[copy[d].tail] = copy[d].submitted);
			step(copy[d].tail = copy[d].tail + 1);
			submits = true
		:: true
		fi;
		if
		:: atomic {
			truth = d;
			if
			:: submits ->
				i = copy[d].tail - 1;
				due[i] = (i > 0 && due[i - 1] > copy[d].now -> due[i - 1] : copy[d].now) + 1;
				i = 0
			:: else
			fi
		   }
		:: atomic { deaths > 0 -> deaths--; goto dead }
		fi;
		atomic { locked = false; now = 0; d = 0; submits = false }
	:: else -> break
	od;
	over++;
	goto ended;
dead:
	atomic {
#ifndef KEPT_LOCK
		locked = false;
#endif
		over++
	}
ended:
}

proctype ticks()
{
	do
	:: clock < TICKS -> clock++
	:: break
	od
}

init {
	byte n, i;
	atomic {
		run ticks();
		do
		:: n < PROCESSES -> run process(); n++
		:: else -> break
		od
	};
	over == PROCESSES;
	atomic { !locked -> locked = true };
	look()
}
