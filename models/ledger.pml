/* The ledger (docs/protocols.md, section 1): who may have these bytes, when anybody may die between any two steps.
 *
 * Owners claim a slot, change what they hold, and live on, leave or die; reapers return what the dead held, and die as
 * well. A process that is merely stopped needs no code: it is one that is not scheduled for a while, so every reaper
 * and every helper here may wake up with an old look at a slot that has been freed and claimed again since.
 * When all have ended, `init` reaps what is left, cannot die, and checks the books.
 *
 * Every shared word is read or written whole, in one step. Death is offered before each write only: a death between
 * two reads leaves behind what a death before the next write leaves behind.
 *
 * Who takes part is chosen by the caller (see the table in `run`):
 *   FIRST, NEXT      changes made by an owner of slot 0, and by another owner of slot 0
 *   SECOND, THIRD    changes made by the owners of slots 1 and 2
 *   REAPERS          mortal reapers
 *   OPERATOR         somebody lowers the limit once
 *   SHORT            how many values the short sequences of `word` and `done` have: 22 bits in the code
 */

#ifdef THIRD
#define SLOTS 3
#else
#define SLOTS 2
#endif
#ifndef REAPERS
#define REAPERS 0
#endif
#ifndef SHORT
#define SHORT LONG
#endif

#define LIMIT   3
#define LOWERED 1
#define LONG    16		/* how many values the sequences of pend and used have: 31 bits in the code */
#define START   14		/* so that the long ones wrap as well */
#define REFRESH 2		/* an owner rewrites its own done that often: 65 536 in the code */

#define next(seq) (((seq) + 1) % LONG)

/* Short sequences are compared as such, but swapped as if they were long: see "What a short sequence cannot tell" in
 * README.md. */
#define same(a, b) ((a) % SHORT == (b) % SHORT)
#ifdef WHOLE_WRAP
#define STORED SHORT
#else
#define STORED LONG
#endif

/* An announcement takes the sequence after the last booked one. Refused charges share theirs, so that an account's
 * newest sequence is never more than one away from what `word` and `done` may say of it. */
#ifdef SEQUENCE_FROM_PEND
#define after(u, p) next(p_seq(p))
#else
#define after(u, p) next(u_seq(u))
#endif

/* The packed words, one constructor and its fields each. */
#define WORD(units, slot, seq) ((units) * 64 + (slot) * 16 + (seq) % STORED)
#define w_units(w) ((w) / 64)
#define w_slot(w)  ((w) / 16 % 4)
#define w_seq(w)   ((w) % 16)

#define PEND(seq, delta) ((seq) * 16 + (delta) + 8)
#define p_seq(p)   ((p) / 16)
#define p_delta(p) ((p) % 16 - 8)

#define USED(seq, units) ((seq) * 8 + (units))
#define u_seq(u)   ((u) / 8)
#define u_units(u) ((u) % 8)

#define FREE(gen)   ((gen) * 2)
#define ACTIVE(gen) ((gen) * 2 + 1)
#define gen(s)      ((s) / 2)
#define active(s)   ((s) % 2)

short word = WORD(0, 0, START);
short pend[SLOTS] = PEND(START, 0);
byte used[SLOTS] = USED(START, 0);
byte done[SLOTS] = START % STORED;
byte status[SLOTS] = FREE(0);
bool locked[SLOTS];		/* the record lock on the slot's byte: gone when its holder is */
#ifdef OPERATOR
byte limit = LIMIT;
#else
#define limit LIMIT
#endif

byte holds[SLOTS];		/* not in the region: what the living owner believes it holds */

#define dead(i) (active(status[i]) && !locked[i])

/* `if :: step OR_DIE fi`: do the step, or die before it. */
#define OR_DIE :: mortal -> goto dying

inline swap(location, old, new)
{
	d_step { ok = (location == (old)); if :: ok -> location = (new) :: else fi }
}

inline note()			/* before w is overwritten, record that it happened */
{
#ifndef NO_NOTE
	do
	:: atomic { d = done[w_slot(w)]; if :: same(d, w_seq(w)) -> break :: else fi }
#ifndef NOTE_UNVALIDATED
	   if :: word != w -> break :: else fi;
#endif
	   if :: swap(done[w_slot(w)], d, w_seq(w)) OR_DIE fi;
#ifdef NOTE_ONCE
	   break
#else
	   if :: ok -> break :: else fi
#endif
	od;
#endif
	d = 0
}

inline apply(seq, delta)	/* the one place where word changes */
{
	if
	:: d_step {
		swap(word, w, WORD(w_units(w) + delta, i, seq));
		assert(word >= 0 && w_units(word) <= LIMIT)
	   }
	   OR_DIE
	fi
}

#ifdef LIMIT_READ_ONCE
#define limit_seen l
#else
#define limit_seen limit
#endif

inline change()
{
	atomic { u = used[i]; assert(u_units(u) == holds[i]) }		/* nobody touches the account of the living */
	k = after(u, pend[i]);
	if :: pend[i] = PEND(k, delta) OR_DIE fi;			/* announce */
#ifdef LIMIT_READ_ONCE
	l = limit;
#endif
	do
	:: atomic { w = word; fits = w_units(w) + delta <= limit }
	   if
	   :: delta > 0 && w_units(w) + delta > limit_seen -> ok = false; break		/* refused */
	   :: else
	   fi;
	   if :: w_slot(w) != i -> note() :: else fi;
	   apply(k, delta);
	   if :: ok -> break :: else fi
	od;
	assert(!ok || delta < 0 || fits);		/* granted within the limit of that instant */
	if
	:: ok ->
	   if
	   :: d_step { used[i] = USED(k, u_units(u) + delta); holds[i] = holds[i] + delta }	/* book */
	      OR_DIE
	   fi;
#ifndef NO_REFRESH
	   if
	   :: k % REFRESH == 0 -> if :: done[i] = k % STORED OR_DIE fi
	   :: else
	   fi
#endif
	:: else
	fi;
	d_step { k = 0; u = 0; w = 0; l = 0; delta = 0; ok = false; fits = false }
}

proctype owner(byte i, changes)
{
	byte k, u, d, l;
	short w, delta;
	bool ok, fits, mortal = true;

	/* Claiming is one step here: it has a model of its own, slot.pml. */
	atomic {
		if
		:: !active(status[i]) && !locked[i] -> locked[i] = true; status[i] = ACTIVE(gen(status[i]) + 1)
		:: else -> goto gone
		fi
	}
#ifndef NO_REFRESH
	if :: done[i] = u_seq(used[i]) % STORED OR_DIE fi;
#endif
	do
	:: changes > 0 ->
	   atomic { changes--; if :: delta = 1 :: delta = 2 :: holds[i] > 0 -> delta = -1 fi }
	   change()
	:: changes = 0; break
	od;
	if
	:: goto gone							/* lives on, and keeps what it holds */
	:: goto dying
	:: if								/* leaves */
	   :: holds[i] > 0 -> delta = -holds[i]; change()
	   :: else
	   fi;
	   d_step { status[i] = FREE(gen(status[i])); locked[i] = false }
	   goto gone
	fi;
dying:
	atomic {
		locked[i] = false; holds[i] = 0;
		i = 0; changes = 0; k = 0; u = 0; d = 0; l = 0; w = 0; delta = 0; ok = false; fits = false
	}
gone:
}

/* Was the last announcement applied? The answer holds if neither the announcement nor the owner changed meanwhile. */
inline look()
{
	p = pend[i];
	u = used[i];
#ifdef DONE_BEFORE_WORD
	d = done[i];
	w = word;
#else
	w = word;
	d = done[i];
#endif
	d_step {
		stable = true;
#ifndef NO_REVALIDATE
		stable = stable && pend[i] == p;
#endif
#ifndef NO_RECHECK
		stable = stable && status[i] == s;
#endif
		booked = u_seq(u) == p_seq(p);
		applied = booked || (w_slot(w) == i && same(w_seq(w), p_seq(p))) || same(d, p_seq(p));
		d = 0
	}
}

/* Booked, or a charge that nobody is left to apply. */
#define settled (booked || (!applied && p_delta(p) >= 0))

inline reap()			/* one look at slot i, whose owner was dead in status s, and one step */
{
	look();
	if
	:: !stable
	:: else ->
	   if
	   :: applied && !booked ->
	      if :: swap(used[i], u, USED(p_seq(p), u_units(u) + p_delta(p))) OR_DIE fi
	   :: !applied && p_delta(p) < 0 ->				/* an unapplied return: finish it */
#ifdef SUPERSEDE_RETURN
	      if :: d_step { swap(pend[i], p, PEND(next(p_seq(p)), p_delta(p))); p = pend[i] } OR_DIE fi;
#endif
	      note();
	      apply(p_seq(p), p_delta(p))
	   :: settled && u_units(u) > 0 ->				/* announce the return of all it holds */
	      if :: swap(pend[i], p, PEND(after(u, p), -u_units(u))) OR_DIE fi
	   :: settled && u_units(u) == 0 ->
#ifdef FREE_WITHOUT_GENERATION
	      if :: swap(status[i], ACTIVE(gen(status[i])), FREE(gen(status[i]))) OR_DIE fi
#else
	      if :: swap(status[i], s, FREE(gen(s))) OR_DIE fi
#endif
	   fi
	fi;
	d_step { i = 0; s = 0; p = 0; u = 0; w = 0; ok = false; stable = false; booked = false; applied = false }
}

/* Status and lock are taken together: had the status moved between the two, look() would find that out. */
#define found_dead(n) atomic { dead(n) -> i = n; s = status[n] }

proctype reaper()
{
	byte i, s, u, d;
	short p, w;
	bool ok, stable, booked, applied, mortal = true;

	do
	:: found_dead(0) reap()
	:: found_dead(1) reap()
#ifdef THIRD
	:: found_dead(2) reap()
#endif
	:: break
	od;
dying:
	atomic {
		i = 0; s = 0; u = 0; d = 0; p = 0; w = 0;
		ok = false; stable = false; booked = false; applied = false
	}
}

init
{
	byte i, s, u, d, n, steps, sum;
	short p, w;
	bool ok, stable, booked, applied, mortal = false;

	atomic {
		run owner(0, FIRST);
#ifdef NEXT
		run owner(0, NEXT);
#endif
#ifdef SECOND
		run owner(1, SECOND);
#endif
#ifdef THIRD
		run owner(2, THIRD);
#endif
		do :: n < REAPERS -> n++; run reaper() :: else -> break od
	}
#ifdef OPERATOR
	limit = LOWERED;
#endif
	_nr_pr == 1;
	atomic {
		for (n : 0 .. SLOTS - 1) {
			steps = 0;
			do
			:: dead(n) -> steps++; assert(steps <= 6); i = n; s = status[n]; reap()
			:: else -> break
			od;
			assert(locked[n] == active(status[n]));		/* the dead are freed, the living are not */
			assert(u_units(used[n]) == holds[n]);
			sum = sum + holds[n]
		}
		assert(w_units(word) == sum)				/* nothing lost, nothing returned twice */
	}
dying:
}
