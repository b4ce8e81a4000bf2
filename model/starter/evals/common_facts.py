"""Guard: short common-sense and school facts, answer contained in the reply; any of the listed answers counts,
and a reply that names more than two answers of other questions is wrong.

SmolLM2-135M-Instruct: 65 of 110 right (chance: about 0);
the last line that ``python -m bench.posttrain_trial --work DIR`` prints.
"""

from __future__ import annotations

import random

from model.items import Item, Score, user
from model.scoring import contains_answer, normal

TITLE = "Common facts"
KIND = "common-sense"
MAX_NEW_TOKENS = 16

_FRAMES = ("{}", "Answer briefly. {}", "{} Answer in one sentence.", "A child asks: {}")
_FACTS = """What colour is a ripe banana?|yellow
What colour is fresh grass?|green
What colour is snow?|white
What colour is a ripe tomato?|red
What colour is coal?|black
What colour is the sky on a clear day?|blue
What is frozen water called?|ice
What is a baby cat called?|kitten
What is a baby dog called?|puppy
What is a baby cow called?|calf
What is a baby sheep called?|lamb
What is a baby horse called?|foal
Which animal gives us milk and says moo?|cow,cows
Which animal barks?|dog,dogs
Which insect makes honey?|bee,bees,honeybee,honeybees
Which animal is known as the king of the jungle?|lion
What is the largest animal on Earth?|blue whale,whale
What is the fastest land animal?|cheetah
What is the tallest animal in the world?|giraffe
Which animal has a long trunk?|elephant,elephants
Which star is closest to the Earth?|sun
Which planet do we live on?|earth
Which planet is known as the red planet?|mars
Which planet is the largest in our solar system?|jupiter
Which planet has famous rings?|saturn
Which planet is closest to the Sun?|mercury
What orbits the Earth and shines at night?|moon
What gas do humans need to breathe?|oxygen
What gas do plants take in?|carbon dioxide,co2
What force pulls things towards the ground?|gravity,gravitational
What do we call water that falls from clouds?|rain,precipitation
At what time of day does the sun rise?|morning,dawn
Which season comes after winter?|spring
Which season is the hottest?|summer
Which season is the coldest?|winter
Which day comes after Monday?|tuesday
Which day comes after Friday?|saturday
Which day comes before Thursday?|wednesday
Which month comes after January?|february
Which month comes after April?|may
Which month is the first of the year?|january
Which month is the last of the year?|december
In which month is Christmas?|december
How many days are in a week?|seven,7
How many months are in a year?|twelve,12
How many hours are in a day?|24,twenty four
How many minutes are in an hour?|60,sixty
How many legs does a spider have?|eight,8
How many legs does a dog have?|four,4
How many wheels does a bicycle have?|two,2
How many sides does a triangle have?|three,3
How many sides does a square have?|four,4
How many fingers are on one hand?|five,5
How many letters are in the English alphabet?|26,twenty six
Who wrote Romeo and Juliet?|shakespeare
Who painted the Mona Lisa?|leonardo,da vinci
Who developed the theory of relativity?|einstein
Who was the first president of the United States?|washington
Who was the first person to walk on the Moon?|armstrong
Who discovered gravity when an apple fell?|newton
Who invented the telephone?|bell
Who wrote Hamlet?|shakespeare
Who wrote the Harry Potter books?|rowling
Who wrote Pride and Prejudice?|austen
Who wrote Oliver Twist?|dickens
Which ocean is the largest?|pacific
Which ocean lies between Europe and America?|atlantic
What is the tallest mountain in the world?|everest
What is the longest river in Africa?|nile
What is the largest desert in Africa?|sahara
What is the largest country by area?|russia
In which country is the Eiffel Tower?|france
In which city is the Eiffel Tower?|paris
In which country is the Great Wall?|china
In which country are the pyramids of Giza?|egypt
In which city is Big Ben?|london
In which city is the Statue of Liberty?|new york
In which country is the Taj Mahal?|india
In which city is the Colosseum?|rome
Which language is spoken in Brazil?|portuguese
Which language is spoken in Mexico?|spanish
Which language is spoken in Austria?|german
Which language is spoken in Japan?|japanese
What is the currency of Japan?|yen
What is the currency of the United States?|dollar,usd
What is the currency of India?|rupee
What is the main ingredient of bread?|flour,wheat
What is cheese made from?|milk
What is wine made from?|grapes,grape
What is glass made from?|sand,silica
What is paper made from?|wood,trees,pulp,cellulose,tree
From which animal do we get wool?|sheep
Which fruit is used to make cider?|apple,apples
What do bees collect from flowers?|nectar,pollen
What do caterpillars turn into?|butterfly,butterflies,moth,moths
What do tadpoles grow into?|frog,frogs
What organ pumps blood through the body?|heart
What organ do we use to think?|brain
What organs do we use to breathe?|lungs,lung
What part of the body do we use to see?|eye,eyes
What part of the body do we use to hear?|ear,ears
What part of the body do we use to smell?|nose,nasal,olfactory
What is the hardest natural substance?|diamond
Which metal is liquid at room temperature?|mercury
What is the chemical symbol for gold?|au
What is the chemical symbol for oxygen?|o,o2
What is the chemical formula of water?|h2o
What is the chemical symbol for iron?|fe
At how many degrees Celsius does water boil?|100
At how many degrees Celsius does water freeze?|0,zero
What do we use to tell the time?|clock,watch,clocks
What do we use to cut paper?|scissors
What do we use to unlock a door?|key,keys
What do you wear on your feet?|shoes,socks,boots,shoe
What do you wear on your head?|hat,cap,helmet
What do we call a person who flies an aeroplane?|pilot
What do we call a person who teaches at a school?|teacher
What do we call a doctor for teeth?|dentist
What do we call a person who bakes bread?|baker
What do we call a person who writes books?|author,writer
What do we call a person who puts out fires?|firefighter,fireman,fire fighter
What instrument has black and white keys?|piano
What instrument has six strings and is plucked?|guitar
Which sport is played at Wimbledon?|tennis
Which game ends with checkmate?|chess
What shape is a football?|round,sphere,spherical,oval,ball
What shape has no corners?|circle,sphere
What do you call the mother of your mother?|grandmother
What do you call the brother of your father?|uncle
What do you call the daughter of your aunt?|cousin
What is the past tense of the verb "go"?|went
What is the past tense of the verb "eat"?|ate
What is the past tense of the verb "see"?|saw
What is the plural of "mouse"?|mice
What is the plural of "child"?|children
What is the plural of "tooth"?|teeth
What is the plural of "foot"?|feet
Which vitamin do we get from sunlight?|d
Which fruit is rich in vitamin C?|orange,oranges,lemon,citrus,kiwi,strawberries,lemons
Which bird cannot fly and lives in Antarctica?|penguin,penguins
Which bird is a symbol of peace?|dove
Which animal builds dams?|beaver,beavers
Which animal carries its house on its back?|snail,turtle,tortoise,hermit crab
Which sea animal has eight arms?|octopus"""
_ANSWERS = {
    question: tuple(answers.split(",")) for question, answers in (line.split("|") for line in _FACTS.splitlines())
}
_ALTERNATIVES = {answer for answers in _ANSWERS.values() for answer in answers} | {str(n) for n in range(101)}


def items(seed: int, count: int) -> list[Item]:
    rng = random.Random(seed)
    questions = rng.sample(sorted(_ANSWERS), min(count, len(_ANSWERS)))
    return [
        Item(
            normal(question), (user(_FRAMES[which].format(question)),), _ANSWERS[question][0],
            f"common_facts/{which}/{question.split()[0].lower()}", {"question": question},
        )
        for question, which in ((question, rng.randrange(len(_FRAMES))) for question in questions)
    ]  # fmt: skip


def score(item: Item, reply: str) -> Score:
    accepted, question = _ANSWERS[item.meta["question"]], item.messages[-1].text
    right = contains_answer(reply, accepted, alternatives=_ALTERNATIVES, question=question, max_others=2)
    return Score(right, float(right))
