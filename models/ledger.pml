/* The ledger (docs/protocols.md): who may have these bytes, when anybody may die between any two steps.
 *
 * Owners claim a slot, change what they hold, and live on, leave or die; reapers return what the dead held, and die as
 * well. A process that is merely stopped needs no code: it is one that is not scheduled for a while, so every reaper
 * and every helper here may wake up with an old look at a slot that has been freed and claimed again since.
 * When all have ended, `init` reaps what is left, cannot die, and checks the books.
 *
 * With FALSE_DEATH, the first owner loses its lock at any moment, and is then dead to the reapers although it goes on, at
 * whatever step it was: before it has read a word, between reading and swapping it, after the slot is another owner's.
 *
 * Every shared word is read or written whole, in one step. Death is offered before each write only: a death between
 * two reads leaves behind what a death before the next write leaves behind.
 *
 * Who takes part is chosen by the caller (see the table in `run`):
 *   FIRST, NEXT      changes made by an owner of slot 0, and by another owner of slot 0
 *   SECOND, THIRD    changes made by the owners of slots 1 and 2
 *   REAPERS          mortal reapers
 *   OPERATOR         somebody lowers the limit once
 *   FALSE_DEATH      the first owner of slot 0 loses its lock, and lives
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

#define FREE(gen)      ((gen) * 4)
#define ACTIVE(gen)    ((gen) * 4 + 1)
#define CONDEMNED(gen) ((gen) * 4 + 2)
#define gen(s)         ((s) / 4)
#define active(s)      ((s) % 4 == 1)
#define condemned(s)   ((s) % 4 == 2)

#define FENCE SLOTS		/* a slot that nobody claims: a fence in `word` is its change */

short word = WORD(0, 0, START);
short pend[SLOTS] = PEND(START, 0);
byte used[SLOTS] = USED(START, 0);
byte done[SLOTS + 1] = START % STORED;
byte fences;
byte status[SLOTS] = FREE(0);
bool locked[SLOTS];		/* the record lock on the slot's byte: gone when its holder is */
#ifdef OPERATOR
byte limit = LIMIT;
#else
#define limit LIMIT
#endif

byte holds[SLOTS];		/* not in the region: what the slot's owner holds, until it is condemned */

#define dead(i) (active(status[i]) && !locked[i])

/* An owner looks at its status after each word that it is about to swap: after pend before the announcement, after word
 * before it applies, after done before it refreshes. */
#define evicted (status[i] != mine)

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
	do
	:: p = pend[i];
	   u = used[i];
	   if
	   :: atomic { evicted -> goto gone }
	   :: atomic { else -> assert(u_units(u) == holds[i]) }		/* nobody touches the account of the living */
	   fi;
	   k = after(u, p);
#ifdef STORE_ANNOUNCEMENT
	   if :: d_step { pend[i] = PEND(k, delta); ok = true } OR_DIE fi;
#else
	   if :: swap(pend[i], p, PEND(k, delta)) OR_DIE fi;		/* announce */
#endif
	   if :: ok -> break :: else fi		/* an owner before us was about to announce, and will not apply it */
	od;
#ifdef LIMIT_READ_ONCE
	l = limit;
#endif
#ifdef STATUS_BEFORE_WORD
	if :: evicted -> goto gone :: else fi;
#endif
	do
	:: atomic { w = word; fits = w_units(w) + delta <= limit }
	   if
	   :: delta > 0 && w_units(w) + delta > limit_seen -> ok = false; break		/* refused */
	   :: else
	   fi;
#if !defined(NO_OWNER_CHECK) && !defined(STATUS_BEFORE_WORD)
	   if :: evicted -> goto gone :: else fi;
#endif
	   if :: w_slot(w) != i -> note() :: else fi;
	   apply(k, delta);
	   if :: ok -> break :: else fi
	od;
	assert(!ok || delta < 0 || fits);		/* granted within the limit of that instant */
	if
	:: ok ->
	   if
	   :: d_step {							/* book */
#ifdef STORE_BOOKING
		used[i] = USED(k, u_units(u) + delta); ok = true;
#else
		swap(used[i], u, USED(k, u_units(u) + delta));
#endif
		if :: ok && !evicted -> holds[i] = holds[i] + delta :: else fi
	      }
	      OR_DIE
	   fi;
	   if :: !ok -> goto gone :: else fi;		/* booked by a reaper, and returned with the rest */
#ifndef NO_REFRESH
	   if
	   :: k % REFRESH == 0 -> refresh(k)
	   :: else
	   fi
#endif
	:: else
	fi;
	d_step { k = 0; u = 0; p = 0; w = 0; l = 0; delta = 0; ok = false; fits = false }
}

inline refresh(seq)		/* an owner's own note */
{
	do
	:: d = done[i];
#ifndef REFRESH_UNCHECKED
	   if :: evicted -> goto gone :: else fi;
#endif
	   if :: swap(done[i], d, (seq) % STORED) OR_DIE fi;
	   if :: ok -> break :: else fi
	od;
	d = 0; ok = false
}

proctype owner(byte i, changes)
{
	byte k, u, d, l, mine;
	short p, w, delta;
	bool ok, fits, mortal = true;

	/* Claiming is one step here: it has a model of its own, slot.pml. */
	atomic {
		if
		:: status[i] % 4 == 0 && !locked[i] ->
		   locked[i] = true; mine = ACTIVE(gen(status[i]) + 1); status[i] = mine
		:: else -> goto gone
		fi
	}
#ifndef NO_REFRESH
	u = used[i];
	refresh(u_seq(u));
	u = 0;
#endif
	do
	:: changes > 0 ->
	   atomic { changes--; if :: delta = 1 :: delta = 2 :: u_units(used[i]) > 0 -> delta = -1 fi }
	   change()
	:: changes = 0; break
	od;
	if
	:: goto gone							/* lives on, and keeps what it holds */
	:: goto dying
	:: if								/* leaves */
	   :: atomic { u_units(used[i]) > 0 -> delta = -u_units(used[i]) }
	      change()
	   :: else
	   fi;
	   if :: d_step { swap(status[i], mine, FREE(gen(mine))); if :: ok -> locked[i] = false :: else fi } OR_DIE fi;
	   goto gone
	fi;
dying:
	atomic { if :: !evicted -> locked[i] = false; holds[i] = 0 :: else fi }
gone:
	atomic { i = 0; changes = 0; k = 0; u = 0; d = 0; l = 0; mine = 0; p = 0; w = 0; delta = 0; ok = false; fits = false }
}

#ifdef FALSE_DEATH
/* The lock goes with any close of the file in that process. */
proctype closing()
{
	atomic {
		if
		:: status[0] == ACTIVE(1) && locked[0] -> locked[0] = false
		:: status[0] != FREE(0)			/* it is over, or keeps its lock */
		fi
	}
}
#endif

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

/* A charge that was not applied when w was current, and whose owner may be about to apply it: after this it cannot. It has
 * looked at its status since it read `word`, and found itself condemned, or it has read a `word` that is no more. */
inline fence()
{
	note();
#ifdef NO_FENCE
	ok = true
#else
	if
	:: d_step { swap(word, w, WORD(w_units(w), FENCE, fences % LONG)); fences++; assert(fences < LONG) }
	   OR_DIE
	fi
#endif
}

inline announce_return()
{
	if :: swap(pend[i], p, PEND(after(u, p), -u_units(u))) OR_DIE fi
}

inline free()
{
#ifdef FREE_WITHOUT_GENERATION
	if :: swap(status[i], CONDEMNED(gen(status[i])), FREE(gen(status[i]))) OR_DIE fi
#else
	if :: swap(status[i], s, FREE(gen(s))) OR_DIE fi
#endif
}

inline condemn()		/* slot i, whose owner was dead in status s */
{
#ifdef NO_CONDEMN
	holds[i] = 0;
	reap()
#else
	if
	:: d_step { swap(status[i], s, CONDEMNED(gen(s))); if :: ok -> holds[i] = 0 :: else fi }
	   OR_DIE
	fi;
	d_step { i = 0; s = 0; ok = false }
#endif
}

inline reap()			/* one look at slot i, which was condemned in status s, and one step */
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
	   :: !applied && p_delta(p) >= 0 ->				/* an unapplied charge: nobody may apply it from now on */
	      fence();
	      if
	      :: ok && u_units(u) > 0 -> announce_return()
	      :: ok && u_units(u) == 0 -> free()
	      :: else
	      fi
	   :: booked && u_units(u) > 0 -> announce_return()
	   :: booked && u_units(u) == 0 -> free()
	   fi
	fi;
	d_step { i = 0; s = 0; p = 0; u = 0; w = 0; ok = false; stable = false; booked = false; applied = false }
}

/* Status and lock are taken together: had the status moved between the two, the swap to CONDEMNED would find that out. */
#define found_dead(n)      atomic { dead(n) -> i = n; s = status[n] }
#define found_condemned(n) atomic { condemned(status[n]) -> i = n; s = status[n] }

proctype reaper()
{
	byte i, s, u, d;
	short p, w;
	bool ok, stable, booked, applied, mortal = true;

	do
	:: found_dead(0) condemn()
	:: found_condemned(0) reap()
	:: found_dead(1) condemn()
	:: found_condemned(1) reap()
#ifdef THIRD
	:: found_dead(2) condemn()
	:: found_condemned(2) reap()
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
#ifdef FALSE_DEATH
		run closing();
#endif
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
			:: dead(n) -> i = n; s = status[n]; condemn()
			:: condemned(status[n]) -> steps++; assert(steps <= 6); i = n; s = status[n]; reap()
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
