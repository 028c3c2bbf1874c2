//! Which blocks enter a budget of tokens, and why each of the others does not. The rules stand in `pure_admission.py`.

/// Why a block entered or not: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Must enter, and did, whole.
    Mandatory,
    /// Entered whole.
    Fits,
    /// Left out.
    OverBudget,
    /// Entered without its older parts.
    OlderParts,
}

impl Reason {
    /// The word for it in ledgers and traces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mandatory => "mandatory",
            Self::Fits => "fits",
            Self::OverBudget => "over_budget",
            Self::OlderParts => "older_parts",
        }
    }

    /// Whether the block entered, whole or in part.
    pub fn admitted(self) -> bool {
        self != Self::OverBudget
    }
}

/// The tokens of a block's parts, oldest first; `None` for a block that is not divisible.
pub type Parts = Option<Box<[i64]>>;

/// What admission decided; the lists have one value per block, in block order.
#[derive(Debug, PartialEq, Eq)]
pub struct Admission {
    /// Mandatory blocks do not fit, or the budget is 0 or less.
    pub overflow: bool,
    /// The first mandatory block that did not fit, if any is mandatory.
    pub overflow_index: Option<usize>,
    /// Tokens of the mandatory blocks before it; 0 without an overflow.
    pub used_before: i64,
    /// Tokens admitted.
    pub total: i64,
    /// Tokens admitted of each block.
    pub tokens: Vec<i64>,
    /// How many of its newest parts entered; `None` for blocks without parts. Empty when no block has any.
    pub kept_parts: Vec<Option<usize>>,
    /// Why.
    pub reasons: Vec<Reason>,
}

impl Admission {
    /// One bit per block, 1 for admitted: block `i` is bit `i % 8` (lowest first) of byte `i / 8`.
    pub fn bitmap(&self) -> Vec<u8> {
        let byte = |reasons: &[Reason]| {
            reasons.iter().enumerate().fold(0, |bits, (i, reason)| bits | u8::from(reason.admitted()) << i)
        };
        self.reasons.chunks(8).map(byte).collect()
    }
}

/// Admits blocks into `budget` tokens. Sizes are 0 or more; `parts` is empty when no block is divisible.
pub fn admit(sizes: &[i64], priorities: &[i64], evictable: &[bool], parts: &[Parts], budget: i64) -> Admission {
    let (mut by_rank, mandatory): (Vec<usize>, Vec<usize>) = (0..sizes.len()).partition(|&i| evictable[i]);
    by_rank.sort_unstable_by_key(|&i| std::cmp::Reverse((priorities[i], i)));
    admit_in_order(sizes, parts, mandatory, by_rank, budget)
}

/// `admit` for an order already known.
pub fn admit_in_order(
    sizes: &[i64],
    parts: &[Parts],
    mandatory: impl IntoIterator<Item = usize>,
    by_rank: impl IntoIterator<Item = usize>,
    budget: i64,
) -> Admission {
    let mut found = Admission {
        overflow: budget <= 0,
        overflow_index: None,
        used_before: 0,
        total: 0,
        tokens: vec![0; sizes.len()],
        kept_parts: parts.iter().map(|parts| parts.as_ref().map(|_| 0)).collect(),
        reasons: vec![Reason::OverBudget; sizes.len()],
    };
    let parts_of = |i: usize| parts.get(i).and_then(Option::as_deref);
    let take = |found: &mut Admission, i: usize, reason, size: i64, count: usize| {
        found.total += size;
        found.tokens[i] = size;
        found.reasons[i] = reason;
        if let Some(Some(kept)) = found.kept_parts.get_mut(i) {
            *kept = count;
        }
    };

    for i in mandatory {
        if found.overflow || sizes[i] > budget - found.total {
            (found.overflow, found.overflow_index) = (true, Some(i));
            break;
        }
        take(&mut found, i, Reason::Mandatory, sizes[i], parts_of(i).map_or(0, <[i64]>::len));
    }
    if found.overflow {
        found.used_before = found.total;
        return found;
    }
    for i in by_rank {
        let room = budget - found.total; // never negative: nothing larger than the room is taken
        if sizes[i] <= room {
            take(&mut found, i, Reason::Fits, sizes[i], parts_of(i).map_or(0, <[i64]>::len));
        } else if let Some((count, size)) = parts_of(i).and_then(|parts| newest_parts(parts, room)) {
            take(&mut found, i, Reason::OlderParts, size, count);
        }
    }
    found
}

/// How many of the newest parts fit without a gap, and their tokens; `None` when not even the newest does.
fn newest_parts(parts: &[i64], room: i64) -> Option<(usize, i64)> {
    let (mut count, mut size) = (0, 0);
    for part in parts.iter().rev() {
        if *part > room - size {
            break;
        }
        count += 1;
        size += part;
    }
    (count > 0).then_some((count, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(found: &Admission) -> Vec<&str> {
        found.reasons.iter().map(|reason| reason.as_str()).collect()
    }

    #[test]
    fn skips_and_continues_and_prefers_the_later_of_equals() {
        let found = admit(&[4, 6, 3, 3, 2], &[9, 5, 1, 1, 1], &[false, true, true, true, true], &[], 10);
        assert_eq!(words(&found), ["mandatory", "fits", "over_budget", "over_budget", "over_budget"]);
        let found = admit(&[4, 7, 3, 3, 2], &[9, 5, 1, 1, 1], &[false, true, true, true, true], &[], 10);
        assert_eq!(words(&found), ["mandatory", "over_budget", "over_budget", "fits", "fits"]);
        assert_eq!((found.total, found.bitmap()), (9, vec![0b11001]));
    }

    #[test]
    fn keeps_the_newest_parts_without_a_gap() {
        let parts = [None, Some(Box::from([1, 5, 2, 3]))];
        let found = admit(&[4, 11], &[0, 0], &[false, true], &parts, 10);
        assert_eq!((found.kept_parts.clone(), found.tokens.clone()), (vec![None, Some(2)], vec![4, 5]));
        assert_eq!(words(&found), ["mandatory", "older_parts"]);
    }

    #[test]
    fn overflows_name_the_block() {
        let found = admit(&[3, 4, 5], &[0; 3], &[false; 3], &[], 7);
        assert_eq!((found.overflow, found.overflow_index, found.used_before, found.total), (true, Some(2), 7, 7));
        let found = admit(&[0, 1], &[0; 2], &[false, true], &[], 0);
        assert_eq!((found.overflow, found.overflow_index, found.total), (true, Some(0), 0));
        let found = admit(&[0], &[0], &[true], &[], -1);
        assert_eq!((found.overflow, found.overflow_index, words(&found)), (true, None, vec!["over_budget"]));
    }

    #[test]
    fn sums_never_wrap() {
        let found = admit(&[1, i64::MAX, i64::MAX], &[0; 3], &[true; 3], &[], i64::MAX);
        assert_eq!(found.total, i64::MAX);
        let found = admit(&[1, i64::MAX], &[0; 2], &[false, true], &[], i64::MIN);
        assert!(found.overflow);
    }

    /// Properties that hold for every input, over inputs from a small generator.
    #[test]
    fn what_is_admitted_fits_and_what_is_left_out_did_not() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let many = usize::try_from(next(9)).expect("small");
            let sizes: Vec<i64> = (0..many).map(|_| next(12).cast_signed()).collect();
            let priorities: Vec<i64> = (0..many).map(|_| next(3).cast_signed()).collect();
            let evictable: Vec<bool> = (0..many).map(|_| next(3) > 0).collect();
            let budget = next(40).cast_signed() - 3;
            let found = admit(&sizes, &priorities, &evictable, &[], budget);
            assert_eq!(found.total, found.tokens.iter().sum::<i64>());
            assert!(found.total <= budget.max(0));
            if !found.overflow {
                let smallest_out = (0..many).filter(|&i| !found.reasons[i].admitted()).map(|i| sizes[i]).min();
                assert!(smallest_out.is_none_or(|size| size > budget - found.total));
                assert!((0..many).all(|i| evictable[i] || found.reasons[i] == Reason::Mandatory));
            }
        }
    }
}
