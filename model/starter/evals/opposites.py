"""Guard: the opposite of a common word, answer contained in the reply; any of the listed opposites counts.

SmolLM2-135M-Instruct: 75 of 110 right (chance: about 0);
the last line that ``python -m bench.posttrain_trial --work DIR`` prints.
"""

from __future__ import annotations

import random

from model.items import Item, Score, user
from model.scoring import contains_answer

TITLE = "Opposites of common words"
KIND = "words"
MAX_NEW_TOKENS = 16

_TEMPLATES = (
    'What is the opposite of "{}"?',
    'Give one word that means the opposite of "{}".',
    'Which word is the opposite of "{}"?',
    "Tell me a word that means the opposite of {}.",
    "Name the opposite of {}.",
)
_PAIRS = """\
hot/cold big/small,little tall/short fast/slow happy/sad,unhappy light/dark,heavy up/down left/right
open/closed,close,shut full/empty old/young,new early/late rich/poor strong/weak hard/soft,easy wet/dry
clean/dirty loud/quiet,soft,silent thick/thin wide/narrow deep/shallow high/low near/far long/short
good/bad,evil right/wrong,left true/false love/hate day/night black/white start/end,finish,stop win/lose,lost
buy/sell give/take,receive push/pull sweet/bitter,sour brave/cowardly,coward,afraid,timid alive/dead
safe/dangerous,unsafe,danger cheap/expensive,costly rough/smooth sharp/blunt,dull inside/outside
above/below,beneath before/after first/last more/less,fewer always/never everything/nothing success/failure
arrive/depart,leave begin/end,finish remember/forget accept/reject,refuse,decline increase/decrease,reduce
victory/defeat friend/enemy,foe war/peace question/answer north/south east/west asleep/awake ancient/modern,new
guilty/innocent polite/rude,impolite generous/stingy,selfish,greedy,miserly simple/complex,complicated,difficult
strict/lenient temporary/permanent visible/invisible possible/impossible optimist/pessimist ascend/descend
attack/defend,defense,defence maximum/minimum public/private lead/follow float/sink laugh/cry
boring/interesting,exciting import/export husband/wife top/bottom raw/cooked absent/present summer/winter
heaven/hell borrow/lend hero/villain beautiful/ugly calm/stormy,agitated,anxious,turbulent,excited,angry,chaotic
lazy/active,hardworking,diligent,industrious,energetic freeze/melt,thaw,heat,boil create/destroy entrance/exit
expand/contract,shrink smile/frown freedom/slavery,captivity,imprisonment,bondage
truth/lie,falsehood,falsity,untruth,false,deception wise/foolish,unwise,ignorant,stupid noisy/quiet,silent
giant/tiny,dwarf,small positive/negative forward/backward,backwards,back artificial/natural,real major/minor
pleasure/pain tight/loose odd/even,normal vertical/horizontal"""
_OPPOSITES = {pair.split("/")[0]: tuple(pair.split("/")[1].split(",")) for pair in _PAIRS.split()}


def items(seed: int, count: int) -> list[Item]:
    rng = random.Random(seed)
    words = rng.sample(sorted(_OPPOSITES), min(count, len(_OPPOSITES)))
    return [
        Item(f"opposite {word}", (user(_TEMPLATES[which].format(word)),), _OPPOSITES[word][0], f"opposites/{which}")
        for word, which in ((word, rng.randrange(len(_TEMPLATES))) for word in words)
    ]


def score(item: Item, reply: str) -> Score:
    word = item.key.removeprefix("opposite ")
    every = [answer for answers in _OPPOSITES.values() for answer in answers]
    right = contains_answer(reply, _OPPOSITES[word], alternatives=every, question=item.messages[-1].text, max_others=2)
    return Score(right, float(right))
