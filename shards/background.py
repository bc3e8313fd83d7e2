"""Questions about everything under the sun: a cohort of strangers, from which each corpus learns what a question about something
else looks like.

Speaker verification compares a voice with a cohort of other people's in the same way (Rosenberg et al. 1992). Sentences of the corpus
with swapped words are strangers, too, but their words and their subjects stay the corpus's own. Some corpus may answer some of these;
that costs power and refuses nobody, since how many of the corpus's own sentences may be refused sets the threshold.
"""

from collections.abc import Sequence

from shards.probes import Probe, random_strings, swap_words, words_of
from shards.word_order import WordOrder

MIN_KNOWN_WORDS = 0.3  # mean share of their words that a corpus in their language knows; another knows some names and numbers

_TEXT = """
how long should I boil an egg
best time of year to plant tomatoes
who won the world cup in 1998
symptoms of a vitamin deficiency
cheap flights to Lisbon in October
what is the capital of Mongolia
how do I remove red wine stains from a carpet
difference between a violin and a viola
train a puppy to walk on a leash
mortgage interest rates
why do leaves turn yellow in autumn
when was the printing press invented
rules of offside in football
how to fix a dripping tap
famous painters of the Renaissance
What causes earthquakes along the edges of tectonic plates?
Which rivers flow into the Black Sea?
How many players are there in a volleyball team?
Can I deduct the costs of a home office from my income tax?
What should I pack for a week of hiking in the mountains?
Who wrote the opera about the barber of Seville?
Is it safe to eat mushrooms that grow in the garden?
How does a refrigerator keep food cold?
Why is the sky blue during the day and red at sunset?
What was the cause of the fall of the Roman Empire?
At what age do children usually learn to read?
How are diamonds formed deep inside the earth?
Which animals sleep through the whole winter?
What is the fastest way to learn a foreign language?
Where do sea turtles lay their eggs?
How is the president of the United States elected?
What does the heart do when we run?
How much water should an adult drink every day?
Does drinking coffee raise blood pressure in older adults?
Which metals are attracted by a magnet?
What makes bread dough rise?
How far is the moon from the earth?
Who was the first woman to fly across the Atlantic alone?
What are the main ingredients of a good curry?
How do bees find their way back to the hive?
Which countries share a border with Switzerland?
Why did the price of oil rise so sharply last year?
What instruments are played in a string quartet?
How are the winners of the Nobel Prize chosen?
What is the difference between weather and climate?
Where can I watch whales from the coast?
How do I sue a neighbour who cut down my tree?
How is glass made from sand?
What were the demands of the workers who went on strike?
Which muscles does swimming train most?
The museum is closed on Mondays and on public holidays.
Her grandmother taught her how to knit sweaters and mittens.
The treaty that ended the war moved the border to the east of the river.
Sharks have lived in the oceans for more than four hundred million years.
The bank raised its fees for customers who withdraw cash abroad.
A goalkeeper may handle the ball only inside the penalty area.
The old bridge was torn down and replaced by a tunnel under the harbour.
The recipe calls for two cups of flour, a pinch of salt and melted butter.
Unemployment fell in the spring, when hotels and restaurants hired again.
The novel tells the story of three sisters who inherit a house by the sea.
The orchestra played the symphony without its conductor.
The emperor ordered a wall to be built along the northern frontier.
Passengers must wear a seat belt while the aircraft is taxiing.
Penguins cannot fly, but under water they are swift and elegant hunters.
The court ruled that the landlord had to return the whole deposit.
The volcano erupted in the night and covered the villages with ash.
He scored two goals in the second half and was sent off shortly before the end.
Regular exercise lowers the risk of heart disease and helps against depression.
The company recalled thousands of cars because of faulty brakes.
The festival attracts musicians and dancers from all over the continent.
The harvest was poor because it had hardly rained since April.
The mayor promised more playgrounds and a new line of the tramway.
Antibiotics do not help against a cold, which is caused by viruses.
The expedition reached the South Pole five weeks after its rivals.
wedding dress
garden furniture
chess openings for beginners
knee pain after running
wild flowers of the Alps
medieval castles
second hand bicycles
history of jazz
bird feeders
electric cars and their batteries
pasta with seafood
inheritance tax
folk dances
sailing boats
migraine
kings of France
horse breeding
piano lessons
polar bears
football transfer rumours
stock market crash
yoga for back pain
sushi
treatment of diabetes in children
Greek mythology
parliamentary elections
ski resorts with good snow in April
growth of the population of large cities
life of monks in the middle ages
coral reefs and the warming of the sea
coffee plantations in Brazil
teaching arithmetic in primary schools
the structure of the atom
effects of alcohol on the liver
trade between China and Europe
construction of wooden houses
migration of birds across the Sahara
genes that protect against malaria
the invention of the steam engine
aerodynamics of racing cars
I am looking for a quiet hotel near the beach that takes dogs, is not too expensive, and where one can rent bicycles for the children.
My neighbour plays loud music until late at night, and talking to him has not helped. What can I do about it, and whom should I ask?
We are interested in how farmers of the nineteenth century paid for seed and cattle, what they owed to landlords, and how often they
Please describe how wine is made, from the harvest of the grapes to the bottle, and what the cellar has to do with its taste.
What is known about the diet of people who lived in the stone age, and what can be learnt from their teeth, their bones and their camps?
I would like to learn about the training of nurses, the wards in which they work, and how hospitals have changed since the war.
Give examples of laws that forbid the hunting of whales, of the states that signed them, and of the ways in which they are broken.
How do composers of film music work with directors, when do they see the pictures, and who decides where there is to be silence?
Which factors made some cities rich in the age of sail while others nearby stayed poor, and what part did harbours and guilds play?
Our roof leaks whenever the wind comes from the west, although the tiles were replaced last summer. Where should the roofer look first?
The committee discussed the rules for referees, the length of the season and the share of the clubs in the income from television.
The methods by which potters of antiquity glazed and fired their vessels, and what their workshops and kilns looked like, are of interest.
wie lange muss ein Ei kochen
Welche Flüsse münden in die Nordsee?
Der Zug nach München fährt heute von einem anderen Gleis ab.
Rezept für Apfelkuchen mit Streuseln
Wer hat die Glühbirne erfunden?
recette de la tarte aux pommes
Quelle est la plus haute montagne d'Afrique ?
Le musée est fermé le mardi et les jours fériés.
cómo llegar al aeropuerto en autobús
¿Quién pintó el techo de la Capilla Sixtina?
El equipo ganó la final en los últimos minutos del partido.
come si prepara un buon risotto
Quando è stata costruita la torre di Pisa?
as melhores praias de Portugal
Hoe laat vertrekt de laatste trein naar Utrecht?
Какая самая длинная река в России
как приготовить борщ
世界上最高的山是哪座
如何学习做菜
東京で一番おいしいラーメン
富士山の高さはどのくらいですか
"""

# As long as people get when they tell a whole matter: by chance these find more than short ones, to another degree than shuffled words.
_AT_LENGTH = """
My daughter is nine years old and has been learning the violin for two years, but lately she no longer wants to practise. Her
teacher says that she is gifted, and she likes to play for her grandparents. Should we let her stop for a while, change the
teacher, or try another instrument such as the cello or the flute?

A train leaves the station at eight o'clock and travels at ninety kilometres an hour. Half an hour later a second train leaves
from the same platform in the same direction at a hundred and twenty kilometres an hour. After how many minutes, and how many
kilometres from the station, does the second train overtake the first?

We want to drive from Vienna to the Adriatic coast at the end of June with two small children and a dog, and would like to stop
for two nights on the way. Which places in the mountains have a lake where children can swim, a camp site that is not too large,
and a playground?

A shop sells apples at three for two euros and pears at five for four euros. Somebody buys eighteen apples and some pears and pays
with a note of fifty euros. If he gets twenty-two euros back, how many pears did he buy, and what would he have paid if everything
had been a tenth cheaper?

Since the new owners took over the house in which I rent a flat, the heating has failed four times, and the lift has been out of
order for a month. They answer neither letters nor telephone calls. May I pay less rent until everything works again, and do I
have to tell them so in writing beforehand?

Heat the butter in a large pan, add the onions and a little garlic, and let them turn golden over a low flame. Pour in the wine
and the stock, season with thyme, salt and pepper, and let the meat simmer for two hours with the lid on. Serve it with potatoes
or noodles and a green salad.

In the spring the storks come back from Africa and settle on the roofs of the village, where the people have built wheels for
their nests. The males arrive first and mend what the winter has left. Eggs are laid in April, and after a month the young hatch,
which both parents feed with frogs, mice and worms.

The team had lost its first three matches and stood at the bottom of the table when the club dismissed its trainer. His successor
brought in two young defenders and let the captain play further back. By Christmas they had won seven times in a row, and in May
they lifted the cup for the first time in thirty years.

I bought a used car from a private seller three weeks ago, and now the gearbox makes a grinding noise whenever I change from
second to third gear. The garage wants two thousand euros for the repair. The contract says that it was sold as seen. Is there any
way to make the seller pay for a part of that?

The painter was born as the son of a miller and came to the city at the age of fourteen to be apprenticed to his uncle. He soon
became famous for portraits in which light falls on faces out of a dark background. Late in life he lost his fortune, his house
and his collection of drawings, and yet he never painted better.

Three friends share a flat. The first pays half of the rent, the second a third, and the third the remaining two hundred euros.
When a fourth person moves in, they decide to divide the rent equally. How much did each of them pay before, how much does each of
them pay now, and who of them saves the most?

How does a vaccine teach the immune system to recognise a virus that it has never met, why do some vaccines protect for a whole
life while others have to be repeated every year, and what is known about people who fall ill although they were vaccinated, above
all when they are very old or take drugs after a transplant?

Before the railway was built the journey over the pass took three days by mail coach, and in winter the road was often closed for
weeks. Thousands of labourers drilled the tunnel from both sides, and when they met in the middle they were only a few centimetres
apart. Many of them had lost their lives by then.

When interest rates rise, the prices of bonds fall, and families who want to buy a house have to pay more each month for their
loan. Some economists hold that central banks reacted too late, others that they went too far. What do earlier crises teach about
the time until higher rates slow down prices, and what about jobs?

A ball is thrown straight up from the roof of a house that is twenty metres high, with a speed of fifteen metres per second. How
high does it rise above the street, how long does it take until it strikes the ground, and how fast is it then, if the resistance
of the air is neglected?

Our cat is fourteen years old and has always been healthy, but for some weeks she has been drinking a great deal, loses weight
although she eats well, and often wants to be let out at night. The vet suspects her kidneys or the thyroid gland. Which
examinations make sense at her age, and what food is good for her?

The constitution gives every citizen the right to found a party, to assemble peacefully and to say what he thinks, but courts have
to draw the line where the rights of others begin. How do they weigh the freedom of the press against the protection of private
life when a newspaper prints photographs of a famous actress with her children?

Whoever wants to learn a language as an adult should hear it every day, speak from the first week on, and not be afraid of
mistakes. Lists of words are soon forgotten if they do not occur in stories or conversations. Which films, books and radio
programmes are suited to beginners, and how many hours a week does it take?

The lake lies between steep wooded hills, and from its northern shore one sees the snow of the high mountains. Steamers call at
the small towns from Easter to October. There are vineyards, a monastery whose library may be visited on weekdays, and a path
along the water that takes five hours to walk without any effort.

A bag holds five red, seven blue and eight green balls. Two of them are drawn without looking and without putting the first one
back. What is the chance that both have the same colour, and how does it change if the first ball is put back before the second
one is drawn?

Farmers complain that the price of milk no longer covers the costs of fodder, energy and the rent of their land, while consumers
find butter too dear. Between them stand dairies and a few large chains of shops. Would it help to market milk directly, to keep
fewer cows and sell more cheese, or to change to organic farming?

After the earthquake the old town lay in ruins, and for months people lived in tents on the hills around it. The king ordered
broad straight streets, houses of the same height, and frames of wood within the walls that were to give way without breaking.
Soldiers marched around the first of them to test whether they would stand.
"""

BACKGROUND = (*_TEXT.strip().splitlines(), *(" ".join(told.split()) for told in _AT_LENGTH.strip().split("\n\n")))


def understands(words: WordOrder) -> bool:
    """Whether a corpus with these words is in a language of the cohort's, so that it is strange by its subjects alone."""
    return sum(1.0 - words.look(text).unknown for text in BACKGROUND) / len(BACKGROUND) >= MIN_KNOWN_WORDS


def strangers(sentences: Sequence[Probe], words: WordOrder) -> tuple[str, ...]:
    """Queries about something else than a corpus. sentences, words: of the corpus.

    Where the cohort is strange by its language already, the corpus's own sentences with swapped words stand in for it.
    """
    if understands(words):
        return BACKGROUND
    common = words.frequent_of(word.lower() for probe in sentences for word in words_of(probe.text))
    return swap_words(sentences, common)


def gibberish(n_strangers: int) -> tuple[str, ...]:
    """Random strings to stand beside so many strangers."""
    return random_strings(n_strangers // 3)
