"""Word problems and prompt variants for the benchmark of prompt reuse, all written for it.

A prompt variant is a system message, a text before the problem and a text after it. The first variant is the reference: the other
variants reuse its KV of the problem.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rksc_tot.core.task import Message


class PromptVariant(NamedTuple):
    """A prompt around a problem: system message, text before the problem, text after it."""

    system: str
    before: str
    after: str

    def messages(self, problem: str) -> list[Message]:
        """The prompt as chat messages."""
        return [
            Message(role="system", content=self.system),
            Message(role="user", content=f"{self.before}{problem}{self.after}"),
        ]


VARIANTS: tuple[PromptVariant, ...] = (
    PromptVariant("You solve word problems.", "Solve this problem step by step.\n\n", "\n\nAnswer:"),
    PromptVariant("You are a patient teacher.", "Here is a question:\n\n", "\n\nExplain each step."),
    PromptVariant("Be brief.", "Problem:\n\n", "\n\nShow your work."),
    PromptVariant("Think before you answer.", "Work out the following.\n\n", "\n\nWhat is the result?"),
    PromptVariant("You help pupils with arithmetic.", "A pupil asks:\n\n", "\n\nHow would you solve it?"),
    PromptVariant("Answer with care.", "Question:\n\n", "\n\nReason in short steps."),
    PromptVariant("You check sums.", "Please read this closely.\n\n", "\n\nGive the number at the end."),
    PromptVariant("Mathematics assistant.", "Can you find the answer?\n\n", "\n\nLet us go step by step."),
)

SHORT_TEXT = """
A bakery sells rolls in bags of 6. On Saturday it sold 14 bags in the morning and 9 bags in the afternoon. At closing
time 11 single rolls were left on the shelf. How many rolls had been baked that day?

Mirela has 85 euros. She buys two tickets for the ferry at 17 euros each and a sandwich for 8 euros. How much money
does she have when she steps off the boat?

A water tank holds 340 litres. A pump fills it at 22 litres a minute while a leak loses 5 litres a minute. How many
minutes does it take until the empty tank is full?

Jonas reads 18 pages on every weekday and 35 pages on each day of the weekend. His book has 480 pages. How many pages
are left after two full weeks?

A farmer packs 276 apples into crates of 12. Each crate is sold for 9 euros, and the crates themselves cost 2 euros
apiece. How much does the farmer earn in all?

On a bus there are 27 passengers. At the first stop 8 get off and 13 get on, at the second stop half of them get off.
How many people are still on the bus?

Noor runs 4 kilometres every morning and 6 kilometres every second evening. How many kilometres does she run in a
month of 30 days?

A school orders 15 boxes of pencils with 24 pencils each. The 45 pupils of the third year get 5 pencils each, and the
rest goes into the cupboard. How many pencils go into the cupboard?

A train leaves at 8 in the morning and travels at 90 kilometres an hour. After 3 hours it slows to 60 kilometres an
hour. How far has it gone after 5 hours?

Tamsin knits a scarf that is 150 centimetres long. In the first week she knits 38 centimetres, in the second week 12
centimetres more than in the first. How much is missing?

There are 7 shelves in the shop. Each shelf holds 32 jars of jam, but two of the shelves are only half full. How many
jars stand on the shelves altogether?

A plumber charges 40 euros for the visit and 28 euros for every hour. The repair took 5 hours, and a new valve cost 63
euros. What does the customer pay?

Ilya plants 9 rows of lettuce with 16 plants in a row. Slugs eat a quarter of the plants, and he gives away 20 heads.
How many heads of lettuce remain?

A cinema has 18 rows of 22 seats. For the evening show 310 tickets were sold, and 14 people did not come. How many
seats stayed empty during the film?

Priya saves 12 euros a week. After 8 weeks she buys a lamp for 59 euros, and her aunt gives her 25 euros. How much has
she got now?

A recipe for 4 people needs 300 grams of rice and 2 onions. Oskar cooks for 10 people. How many grams of rice does he
need, and how many onions?

A parking garage has 5 levels with 48 places each. At noon 173 cars are inside; until three o'clock 39 leave and 52
arrive. How many places are free then?

Lena cuts a ribbon of 7 metres into pieces of 35 centimetres. She uses 11 pieces for presents. How many pieces does
she still have?

Two friends share the cost of a tent that costs 186 euros, but one of them pays 30 euros more than the other. How much
does each of them pay?

A library lends 64 books on Monday, 15 fewer on Tuesday, and on Wednesday as many as on the first two days together.
How many books were lent in the three days?

A snail climbs 3 metres up a wall during the day and slides back 1 metre at night. The wall is 11 metres high. On
which day does the snail reach the top?

At the fair a ride costs 4 tokens. A strip of 10 tokens costs 6 euros. Bela wants to ride 15 times. How many euros
does he have to spend on strips?

Grandmother is 71 years old. She is 5 years older than three times the age of her grandson Emil. How old is Emil, and
how old will he be in 9 years?

A printer makes 24 pages a minute. A booklet has 36 pages and 50 copies are wanted. After 40 minutes the paper jams.
How many pages are not yet printed?

In a pond live 45 fish. Each spring their number grows by 20, and each autumn the warden takes out 12. How many fish
are there after 4 years?

A box of tiles covers 2 square metres and costs 31 euros. The kitchen floor measures 5 metres by 4 metres. What do the
tiles for the floor cost?

Hugo has 3 times as many marbles as Ada. Together they have 92 marbles. Hugo loses 17 of his in a game. How many
marbles does each of them have now?

A cyclist rides 25 kilometres to the lake, rests, and takes a way back that is 7 kilometres longer. She does this on 6
days of the month. How far does she ride in the month?

A jug holds 2 litres of lemonade. One glass takes 250 millilitres. For a party with 26 guests everybody should get 2
glasses. How many jugs are needed?

A carpenter has boards of 240 centimetres. For one shelf he needs 5 pieces of 55 centimetres. How many boards must he
buy to build 4 shelves?

Of the 120 seats in a theatre, 35 were given to school classes and two thirds of the others were sold. How many seats
were neither given away nor sold?

A phone battery loses 9 percent an hour during calls and 2 percent an hour otherwise. It starts full. What is left
after 5 hours of calls and 10 hours of rest?

Salma picks 13 kilograms of cherries. She keeps 4 kilograms and sells the rest in cups of 300 grams for 2 euros a cup.
How much money does she make?

A flight of stairs has 68 steps. Milo goes up 5 steps at a time for the first 40 steps, then one at a time. How many
strides does he need?

The gardener waters 33 trees with 15 litres each and 58 bushes with 6 litres each. His cart holds 200 litres. How
often must he fill the cart?

A shop gives a discount of 20 percent on shoes that cost 75 euros and 10 percent on a belt for 30 euros. How much does
a customer save who buys both?

Every day a hen lays one egg. Ruth has 14 hens, eats 3 eggs a day, and sells the others by the dozen. How many dozens
can she sell in 12 days?

A choir of 54 singers stands in rows. Each row has 2 singers more than the one before, and the first row has 5. How
many rows are there?

A clock loses 4 minutes every day. It was set right at noon on the first of June. What time does it show at noon on
the sixteenth of June?

Five friends order 3 pizzas at 11 euros and 5 drinks at 2 euros, and they leave a tip of 7 euros. They split the bill
evenly. What does each one pay?

A ship carries 860 containers. In the first port 245 are unloaded and 118 loaded, in the second port a third of what
is on board is unloaded. How many containers are left?

Ben has a rope of 96 metres. He cuts it in half, then cuts one of the halves into 6 equal pieces. How long is the
longest piece longer than the shortest?

A class collects 1250 bottle caps. Group one brings 310, group two twice as many. How many caps did group three bring,
if there were only three groups?

A taxi costs 5 euros at the start and 2 euros for each kilometre. Vera has 33 euros and wants to keep 4 euros. How far
can she ride?

The museum charges 8 euros for adults and 3 euros for children. On Sunday 95 adults and 140 children came. How much
more did the adults pay than the children?

A candle of 24 centimetres burns down 3 centimetres an hour. A thicker one of 16 centimetres burns down 1 centimetre
an hour. After how many hours are they equally tall?

Karim types 42 words a minute. His essay has 1800 words, and after each 10 minutes he pauses for 3 minutes. How long
does he need in all?

A beekeeper fills 19 jars of honey from each of her 6 hives. She gives 8 jars to neighbours and packs the others in
boxes of 10. How many full boxes does she get?
"""

LONG_TEXT = """
A youth club plans a trip for 38 young people and 5 adults. The coach costs 420 euros for the day and takes at most 49
passengers. Entry to the climbing park is 14 euros for young people and 19 euros for adults, but for each ten young
people one adult goes in free. The town gives the club 150 euros towards the trip, and a bake sale has brought in
another 96 euros. The rest is shared equally by the young people. How much does each of them have to pay?

Anneke runs a small bookshop. On the first of the month there are 640 books on her shelves. In the first week she
sells 85 of them and orders 40 new ones, which arrive at once. In the second week she sells 30 fewer than in the first
week. In the third week a school buys 3 sets of 28 books, and in the fourth week nobody comes because of the snow, but
a publisher sends a parcel of 25 books as a present. How many books are in the shop at the end of the month?

A cargo cyclist delivers parcels in the old town. Her box holds 18 parcels, and a full round takes her 50 minutes.
Between two rounds she needs 10 minutes to load the box again. On Monday she starts at nine in the morning with a full
box, works until one, has lunch for an hour, and goes on until six in the evening. On the last round of the day she
only has 7 parcels left. How many parcels does she deliver on Monday, if all other rounds begin with a full box?

The swimming pool of the village is 25 metres long, 12 metres wide and 2 metres deep. Before the summer it is emptied,
cleaned for 3 days, and filled again. Two pipes fill it: one brings 15 cubic metres an hour, the other 10 cubic metres
an hour. After the first 8 hours the larger pipe breaks and only the smaller one runs for 6 hours, until the mechanic
has repaired it. How many hours does it take in all until the pool is full?

Three sisters inherit an orchard with 210 trees. The eldest takes 20 more trees than the youngest, and the one in the
middle takes 10 more than the youngest. In a good year each tree gives 45 kilograms of fruit, of which a tenth is
spoiled. The youngest sister sells her fruit for 2 euros a kilogram and pays 6 workers 180 euros each for the harvest.
How much money does the youngest sister have after a good harvest?

A mountain hut has 4 rooms with 6 beds, 3 rooms with 4 beds and a hall with 20 mattresses. A night in a room costs 32
euros, a night in the hall 18 euros, and breakfast is 9 euros for everybody. On Friday all beds in the rooms are
taken, and the hall is half full. A quarter of all guests leave without breakfast because they want to see the sun
rise from the summit. How much money does the hut take for that night, breakfast included?

Yusuf and his neighbour paint a fence together. The fence has 64 boards. Yusuf paints a board in 6 minutes, his
neighbour needs 9 minutes for one. They start at two in the afternoon. After one hour the neighbour has to leave for
30 minutes, while Yusuf goes on alone. Then they work together again until it starts to rain at half past four. The
boards they have not painted by then must wait until the next day. How many boards are left for the next day?

A factory fills bottles on two lines. The old line fills 40 bottles a minute and stands still for 5 minutes in each
hour because it must be cleaned. The new line fills 70 bottles a minute without a break, but it was only switched on 3
hours after the shift began. A shift has 8 hours. The bottles are packed in crates of 24, and a truck takes 500
crates. How many full trucks can leave after the shift, and how many crates stay behind?

For her birthday Carla bakes muffins with her father. One tray takes 12 muffins and stays in the oven for 25 minutes.
They have only one tray, and between two batches it takes 5 minutes until the tray is filled again. For 12 muffins
they need 3 eggs, 200 grams of flour and 90 grams of butter. In the cupboard are 16 eggs, one kilogram of flour and
half a kilogram of butter. They bake as many full trays as they can. How many muffins do they get, and how long do
they bake?

A sailing boat leaves the harbour at six in the morning and sails to an island that is 48 kilometres away. In the
first two hours there is little wind and the boat makes 7 kilometres an hour. Then the wind gets stronger and it makes
13 kilometres an hour. On the island the crew rests for 3 hours and 15 minutes. On the way back the wind comes from
ahead, so that the boat needs twice as long as on the way out. How many hours after its start is the boat back in the
harbour?

In a chess club everybody pays 8 euros a month, and members under sixteen pay half. The club has 46 members, and 18 of
them are under sixteen. Rent for the room is 130 euros a month, and once a year the club spends 450 euros on a
tournament and 75 euros on prizes. Last year 4 adults left the club at the end of June and nobody came in their place.
How much money did the club have over at the end of the year?

A baker's van drives to five villages every morning. The first village is 9 kilometres from the bakery, and from each
village to the next it is 6 kilometres. After the last village the van goes straight home, which takes 21 kilometres.
The van needs 8 litres of fuel for 100 kilometres, and a litre costs 2 euros. The baker drives on 26 days of the month
and earns 55 euros more on each of them than she would without the van. What is left of that after paying for the
fuel?

A gardener wants to lay a path of square slabs around a lawn that is 12 metres long and 8 metres wide. The path is to
be one metre wide on all sides, and each slab is 50 centimetres on a side. Slabs are sold on pallets of 40 and cost 3
euros each; a pallet that has been opened cannot be given back. The gardener has 26 slabs left over from another
garden. How many pallets must he buy, and what does he have to pay for them?

During a sale a coat that used to cost 160 euros is marked down by a quarter. A week later the price is lowered by
another 15 euros. Dilara also has a voucher for 20 euros, which the shop accepts only if the bill is above 100 euros.
She takes the coat and two pairs of gloves at 12 euros each, of which the second pair is half price. She pays with two
notes of 100 euros. How much money does she get back?

A weather station measures the rain of each week. In the first week of March there fell 14 millimetres, in the second
week twice as much, and in the third week 9 millimetres less than in the second. The fourth week was dry. In April
there was three times as much rain as in March, but half of it fell in a single night. The rain barrel of the station
gains 2 litres for each millimetre and holds 100 litres. How many litres ran over in that night, if the barrel had
been empty before?

A theatre group sells tickets for three evenings. On the first evening 120 of the 150 seats are taken, on the second
evening every seat is taken and 12 people stand at the back for half the price, and on the third evening a third of
the seats stay empty. A seat costs 16 euros. The group pays 900 euros for the hall and 5 euros for each ticket sold to
the author of the play, standing places included. How much does the group earn on the three evenings?
"""


def _problems(text: str) -> tuple[str, ...]:
    """One problem a paragraph."""
    return tuple(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


SHORT, LONG = _problems(SHORT_TEXT), _problems(LONG_TEXT)


def with_other_numbers(problem: str, number: int) -> str:
    """The problem with every number raised by ``number``: other tokens, the same story. 0 leaves it as it is."""
    return re.sub(r"\d+", lambda found: str(int(found[0]) + number), problem)
