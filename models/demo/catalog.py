"""Word lists and tool templates for data.py. Plain data, no logic."""

CITIES = """Paris London Tokyo Berlin Madrid Rome Vienna Lisbon Dublin Prague Oslo Stockholm Helsinki Copenhagen Amsterdam Brussels
Athens Warsaw Budapest Zurich Geneva Munich Hamburg Milan Naples Barcelona Seville Porto Lyon Nice Boston Chicago Seattle Denver Austin
Dallas Miami Atlanta Toronto Montreal Vancouver Sydney Melbourne Perth Auckland Singapore Bangkok Hanoi Seoul Osaka Kyoto Beijing
Shanghai Mumbai Delhi Cairo Nairobi Lagos Lima Bogota Santiago Istanbul Ankara Dubai Doha Tehran Karachi Manila Jakarta Houston Phoenix
Portland Detroit Riga Tallinn Vilnius Sofia Zagreb Belgrade Krakow Ghent Basel Turin Malaga Leeds Bristol Cardiff Glasgow
New_York San_Francisco Los_Angeles Hong_Kong Cape_Town Buenos_Aires Rio_de_Janeiro Mexico_City Kuala_Lumpur Tel_Aviv San_Diego
Abu_Dhabi New_Delhi Las_Vegas Salt_Lake_City Ho_Chi_Minh_City Panama_City The_Hague""".split()
PEOPLE = """Anna Ben Carla David Emma Felix Grace Henry Iris Jack Kate Liam Maria Noah Olivia Peter Quinn Rosa Sam Tina Ursula Victor
Wendy Xavier Yara Zoe Alice Bob Carol Dan Eve Frank Gina Hugo Ivan Julia Karl Laura Mike Nina Oscar Paula Ravi Sofia Tom Uma Vera Will
Aisha Chen Diego Elena Fatima Goran Hana Ines Jonas Kenji Leila Mateo Nadia Omar Priya Ruth Stefan Thea Yusuf Lena Marco Sarah John""".split()
SURNAMES = """Smith Jones Brown Miller Davis Garcia Lopez Wilson Moore Taylor Lee Khan Kim Singh Novak Weber Rossi Silva Costa Dubois
Meyer Larsen Kovacs Tanaka Sato Wang Ali Haddad Okafor Mensah Fischer Berg Holm Costello Park""".split()
COUNTRIES = """France Germany Spain Italy Japan China India Brazil Canada Mexico Norway Sweden Finland Poland Greece Portugal Austria Egypt
Kenya Chile Peru Turkey Iran Iraq Vietnam Thailand Ireland Hungary Croatia Iceland Cuba Ghana Nepal""".split()
CAPITALS = dict(x.split(":") for x in """France:Paris Germany:Berlin Spain:Madrid Italy:Rome Japan:Tokyo China:Beijing Norway:Oslo
Sweden:Stockholm Finland:Helsinki Poland:Warsaw Greece:Athens Portugal:Lisbon Austria:Vienna Egypt:Cairo Kenya:Nairobi Chile:Santiago
Peru:Lima Ireland:Dublin Hungary:Budapest England:London""".split())
WORDS = """red blue green quick slow bright dark cold warm early late big small new old happy quiet loud simple final first second main
daily weekly monthly spring summer autumn winter morning evening garden kitchen office travel budget project design launch review
meeting team client sales market plan draft report summary notes list update release bug fix test login page search index server cloud
data backup network phone camera battery cable chair table lamp desk paper book story music guitar piano jazz rock movie film comedy
drama coffee tea bread cheese apple banana orange lemon pasta rice soup salad pizza chicken fish vegan recipe dinner lunch breakfast
birthday party wedding holiday trip hotel flight train bus car bike road river lake mountain beach forest island city street house home
school class lesson math history science biology physics chemistry language french german spanish energy solar wind water fire earth
moon star planet dog cat horse bird whale running yoga swimming tennis football chess game puzzle photo video audio logo banner poster
invoice payment order refund contract policy tax salary bonus loan bank account card price discount quarter year week day hour milk
eggs butter sugar flour tomato onion carrot potato shirt shoes jacket hat socks gloves buy call write read send check clean pick bring
finish start prepare order book renew cancel the a of for with to my our about""".split()
THINGS = [w for w in WORDS if w not in "the a of for with to my our about first second small new old big read call write send check clean pick bring final main".split()]
ITEMS = """apples pears bananas eggs pencils notebooks cables lamps chairs tables mugs shirts hats books tickets bottles boxes candles
towels plates forks screws bolts batteries adapters keyboards""".split()
DOMAINS = {  # nouns of the procedural tools
    "crm": "contact lead deal customer account opportunity campaign prospect", "billing": "invoice payment refund subscription receipt quote coupon",
    "files": "file folder document archive attachment template snapshot", "tasks": "task project milestone checklist board reminder sprint",
    "calendar": "event meeting appointment booking shift holiday", "support": "ticket case complaint incident escalation survey",
    "shop": "product order cart wishlist review shipment return", "devops": "server cluster container deployment pipeline secret database alert",
    "code": "repository branch issue commit release pull_request", "home": "lamp thermostat camera door_lock sensor scene speaker",
    "media": "song playlist album podcast video channel movie", "travel": "flight hotel trip itinerary rental_car train_ticket visa",
    "health": "patient prescription workout meal vaccine lab_test", "school": "course student exam lesson homework grade",
    "library": "book loan reservation member magazine", "fleet": "vehicle driver route delivery fuel_card parcel",
    "hr": "employee vacation_request job_posting candidate payslip", "farm": "field crop harvest tractor animal",
    "finance": "portfolio trade stock_order budget expense loan_offer", "museum": "exhibit ticket_sale tour sculpture donation",
    "game": "player quest guild item tournament", "kitchen": "recipe ingredient menu table_reservation shopping_list",
}
HELD_DOMAINS = {"library", "fleet", "museum", "devops"}

# name: (parameter names, schema, descriptions, ways to say it); {v} is the value as text
ENUMS = {
    "priority": ("priority urgency", "low medium high", ["Priority", "How urgent it is"], ["with {v} priority", "priority {v}", "as {v} priority"]),
    "status": ("status state", "open closed pending", ["Status", "Only this status"], ["with status {v}", "that are {v}", "status {v}"]),
    "level": ("level severity", "info warning error critical", ["Severity level"], ["at level {v}", "with severity {v}"]),
    "format": ("format output_format file_type", "pdf csv json xml", ["Output format", "File format"], ["as {v}", "in {v} format"]),
    "size": ("size", "small medium large", ["Size"], ["size {v}", "in size {v}", "in {v}"]),
    "sort": ("sort sort_by order_by", "name date price rating", ["Sort key", "Field to sort by"], ["sorted by {v}", "order them by {v}"]),
    "color": ("color colour", "red green blue white black", ["Color"], ["in {v}", "color {v}"]),
    "mode": ("mode", "fast balanced safe", ["Mode of operation"], ["in {v} mode", "using {v} mode"]),
    "channel": ("channel via", "email sms push", ["Delivery channel"], ["via {v}", "by {v}"]),
    "period": ("period interval frequency", "daily weekly monthly yearly", ["How often", "Period"], ["{v}", "on a {v} basis"]),
    "role": ("role access permission", "viewer editor admin", ["Access role"], ["as {v}", "with role {v}", "with {v} access"]),
    "env": ("environment env stage", "production staging dev", ["Target environment"], ["in {v}", "on {v}"]),
}
FLAGS = {  # names, descriptions, true phrases, false phrases
    "notify": ("notify send_notification", ["Notify people"], ["and notify everyone", "with a notification"], ["without notifying anyone", "do not notify anyone"]),
    "archived": ("include_archived archived", ["Include archived ones"], ["including archived ones", "also the archived ones"], ["without archived ones"]),
    "urgent": ("urgent is_urgent", ["Whether it is urgent"], ["it is urgent", "mark it as urgent"], ["it is not urgent"]),
    "private": ("private is_private", ["Make it private"], ["make it private", "keep it private"], ["make it public", "not private"]),
    "force": ("force", ["Skip confirmation"], ["force it", "by force"], ["do not force it"]),
    "dry_run": ("dry_run", ["Only simulate"], ["as a dry run", "just simulate it"], ["not as a dry run"]),
    "recursive": ("recursive", ["Include children"], ["recursively"], ["not recursively"]),
}
# group: (verbs, imperatives, descriptions, required kinds, optional kinds, result kind)
ACTIONS = {
    "create": ("create add new make register", ["create {an}", "add {a_new}", "make {a_new}", "set up {a_new}", "register {a_new}"], ["Create {an}", "Add {a_new}", "Creates {a_new}", "Register {an}"],
               ["title"], "priority date tags people size color private text amount role contact address geo time urgent email", "created"),
    "delete": ("delete remove erase drop", ["delete the {n}", "remove the {n}", "erase the {n}", "get rid of the {n}"], ["Delete {an}", "Remove {an} by id", "Delete {an} permanently"],
               ["id"], "force notify reason dry_run", "done"),
    "get": ("get fetch show read lookup", ["show me the {n}", "get the {n}", "open the {n}", "give me the details of the {n}", "look up the {n}"], ["Get {an} by id", "Show the details of {an}", "Fetch one {n}"],
            ["id"], "format archived env", "record"),
    "list": ("list show_all get_all", ["list all {ns}", "show all {ns}", "list the {ns}", "give me all {ns}", "which {ns} are there"], ["List {ns}", "List all {ns}", "Return all {ns}"],
             [], "status limit sort archived city people_one daterange env", "many"),
    "search": ("search find query", ["search {ns}", "find {ns}", "look for {ns}", "search the {ns}"], ["Search {ns}", "Find {ns} by keyword", "Full text search in {ns}"],
               ["query"], "limit sort status maxprice daterange city", "many"),
    "update": ("update edit change modify", ["update the {n}", "change the {n}", "edit the {n}", "modify the {n}"], ["Update {an}", "Change fields of {an}", "Edit an existing {n}"],
               ["id", "newtitle|newstatus|newamount|newowner|newdate"], "notify priority urgent", "done"),
    "assign": ("assign allocate give", ["assign the {n}", "allocate the {n}", "give the {n}"], ["Assign {an} to a person", "Set the owner of {an}"], ["id", "assignee"], "date priority notify", "done"),
    "share": ("share invite", ["share the {n}", "give access to the {n}"], ["Share {an} with people", "Give access to {an}"], ["id", "emails|people"], "role text notify", "done"),
    "export": ("export download dump", ["export the {n}", "download the {n}"], ["Export {an} to a file", "Download {an}"], ["id", "format"], "path recursive", "file"),
    "start": ("start launch run enable activate", ["start the {n}", "launch the {n}", "activate the {n}", "turn on the {n}"], ["Start {an}", "Activate {an}", "Turn on {an}"], ["id"], "mode minutes env dry_run", "done"),
    "stop": ("stop pause disable halt", ["stop the {n}", "pause the {n}", "turn off the {n}", "disable the {n}"], ["Stop {an}", "Turn off {an}", "Disable {an}"], ["id"], "force reason minutes", "done"),
    "schedule": ("schedule plan", ["schedule {an}", "plan {an}"], ["Schedule {an}", "Plan {an} at a date"], ["title", "date"], "time minutes people city period emails", "created"),
    "move": ("move transfer relocate", ["move the {n}", "transfer the {n}"], ["Move {an}", "Move {an} to another place"], ["id", "destination"], "notify date force", "done"),
    "count": ("count count_all", ["count the {ns}", "how many {ns} are there", "tell me how many {ns} we have"], ["Count {ns}", "Number of {ns}"], [], "status city daterange", "count"),
    "order": ("order buy purchase request", ["order for the {n}:", "buy for the {n}:", "put on the {n} list:"], ["Order items for {an}", "Purchase items for {an}"], ["items"], "address urgent date", "created"),
    "rate": ("rate score", ["rate the {n}", "score the {n}"], ["Rate {an} from 1 to 5", "Give {an} a score"], ["id", "stars"], "text", "done"),
    "resize": ("resize scale", ["resize the {n}", "scale the {n}"], ["Change the size of {an}"], ["id", "dims"], "mode", "done"),
    "cancel": ("cancel revoke", ["cancel the {n}", "call off the {n}"], ["Cancel {an}", "Cancel an existing {n}"], ["id"], "reason notify", "done"),
}
# Handwritten tools: names | descriptions | parameters (name=kind, ! required) | imperatives or questions | result keys | answer
# A request that ends in "?" is used as a question. Parameters not named in the request are appended with their kind's own clause.
TOOLS = """
get_weather,current_weather,weather,get_current_weather,weather_now|Get the current weather for a city,Current weather of a place: temperature and forecast; is it warm or cold or raining; is an umbrella needed,Get the weather for a location|city,location=city! unit,units=tempunit|what is the weather in {0}?;what's the weather like in {0}?;how is the weather in {0}?;what is the weather like in {0} today?;weather in {0}?;what's the weather in {0} right now?;get the weather for {0};tell me the weather in {0};check the weather in {0};is it warm in {0}?;how cold is it in {0}?;what is the temperature in {0}?;do I need an umbrella in {0}?;is it raining in {0}?;what's the forecast for {0}?|weather|It is {temperature} degrees and {condition} in {0}.
get_forecast,weather_forecast,forecast|Get the weather forecast for the next days,Daily forecast: what the weather will be|city,location=city! days=days!|what will the weather be in {0} over the next {1} days?;give me the {1} day forecast for {0};forecast for {0} for {1} days|high:int low:int|Expect a high of {high} and a low of {low} in {0}.
get_time,current_time,world_clock|Get the local time in a city,Current time of a place|city,location,place=city!|what time is it in {0}?;tell me the time in {0};what is the local time in {0}?;current time in {0}?|time:time|It is {time} in {0}.
get_stock_price,stock_quote,quote|Get the latest price of a stock or its quote: what it is trading at,Stock price and trading quote by ticker symbol|symbol,ticker=ticker!|what is the price of {0}?;how is {0} stock doing?;get the stock price of {0};what is {0} trading at?;look up the quote for {0}|price:money|{0} is at {price}.
convert_currency,currency_convert,exchange|Convert an amount into another currency: how much it is or change it,How much money is in another currency: convert and change|amount=money! from,from_currency=currency! to,to_currency=currency!|convert {0} {1} to {2};how much is {0} {1} in {2}?;what is {0} {1} in {2}?;change {0} {1} into {2}|result:money|That is {result} {2}.
calculate,calculator,evaluate|Calculate and evaluate and compute a math expression: what or how much it is,What is the result: compute or calculate or evaluate how much it is|expression,expr=expr!|calculate {0};what is {0}?;compute {0};how much is {0}?;evaluate {0}|result:int|The result is {result}.
translate,translate_text|Translate text into another language or say it in that language,Translates a text: how to say it|text=text! target_language,language,to=lang!|translate "{0}" to {1};how do you say "{0}" in {1}?;translate '{0}' into {1}|translation:word|In {1} it is "{translation}".
send_email,email_send,mail|Send an email,Send an email to someone|to,recipient=email! subject=title! body,text=text|send an email to {0} with subject "{1}";email {0} with the subject '{1}';write an email to {0}, subject "{1}"|status:sent|The email to {0} was sent.
send_message,send_sms,text_message|Send a text message to a person or tell them something,Send an SMS: text or message or tell someone something|to,recipient=person! message,text,body=text!|text {0} "{1}";send {0} a message saying "{1}";message {0}: "{1}";tell {0} "{1}"|status:sent|Your message to {0} was sent.
call_phone,dial,make_call|Call a phone number: dial it,Dial a number and make a phone call|number,phone_number=phone!|call {0};dial {0};phone {0} please;make a call to {0}|status:started|The call was started.
set_timer,start_timer,timer|Start a countdown timer or remind in some minutes,Set a timer in minutes: remind or start|minutes,duration_minutes=minutes! label=title|set a timer for {0} minutes;start a {0} minute timer;remind me in {0} minutes;timer for {0} minutes|id:id|The timer for {0} minutes runs.
set_alarm,alarm,create_alarm|Set an alarm to wake somebody up,Set an alarm at a time of day: wake up|time=time! repeat=period|set an alarm for {0};wake me up at {0};alarm at {0}|status:set|The alarm is set for {0}.
web_search,search_web,google,internet_search|Search the web or google it: look it up online,Search the internet for pages on the web: google or look up online|query,q=query! limit,max_results=limit|search the web for {0};google {0};look up {0} online;search the internet for {0};find web pages about {0}|@many|
read_file,open_file,cat_file|Read a file from disk: open or show or print what it contains,Open a file: read or print or show what it may contain|path,file,filename=path!|read {0};open the file {0};show me what is in {0};what does {0} contain?;print {0}|content:words|It contains: {content}
write_file,save_file|Write text to a file: put or save it,Create a file: save or write or put text into it|path,file,filename=path! content,text,contents=text!|write "{1}" to {0};save "{1}" in {0};put "{1}" into the file {0}|status:written|The file {0} was written.
run_query,sql_query,execute_sql|Run a SQL query: execute it,Execute SQL on the database: run a query|sql,query,statement=sql!|run the query "{0}";execute "{0}";run this sql: "{0}"|rows:int|The query returned {rows} rows.
play_music,play_song,play|Play a song or artist: put it on to hear it,Play music: start or put on what the user wants to hear|song,track,title=title! volume=percent|play "{0}";put on "{0}";I want to hear "{0}";start playing '{0}'|status:playing|Now playing {0}.
book_flight,reserve_flight|Book a flight or fly,Book a flight to fly between two cities|from,origin=city! to,destination=city! date,departure_date=date! passengers,seats=small cabin=cabin|book a flight from {0} to {1} on {2};fly from {0} to {1} on {2};I need a flight from {0} to {1} on {2}|id:id price:money|Your flight to {1} is booked with id {id} for {price}.
search_flights,find_flights,flight_search|Search for flights between two cities,Find flights|from,origin=city! to,destination=city! date=date|find flights from {0} to {1};which flights go from {0} to {1}?;search flights from {0} to {1}|@many|
book_hotel,reserve_hotel|Book a hotel room for some nights or reserve it,Reserve a room in a hotel: book some nights|city,location=city! check_in,from=date! nights,num_nights=days! guests=small|book a hotel in {0} from {1} for {2} nights;reserve a room in {0} on {1} for {2} nights;I need a hotel in {0} for {2} nights from {1}|id:id price:money|Your room in {0} is booked with id {id} for {price}.
get_directions,directions,route|Get directions or a route: show the way from one place to another,How to get from one place to another: the route; directions or way|from,origin,start=city! to,destination,end=city! mode=travelmode|how do I get from {0} to {1}?;directions from {0} to {1};show me the way from {0} to {1};route from {0} to {1}|distance_km:int minutes:int|It is {distance_km} km and takes {minutes} minutes.
find_restaurants,restaurant_search|Find restaurants: places where one can eat,Search restaurants by cuisine: where to eat|city,location=city! cuisine,food=cuisine limit=limit|find a restaurant in {0};where can I eat in {0}?;restaurants in {0}?;good places to eat in {0}?|@many|
order_pizza,pizza_order|Order a pizza,Order pizza for delivery|size=enum:size! toppings=toppings address=address|order a {0} pizza;I want a {0} pizza;get me a {0} pizza|id:id minutes:int|Your pizza is on the way, {minutes} minutes.
set_temperature,thermostat_set|Set the temperature of the thermostat: make it some degrees,Set the thermostat: make the room temperature so many degrees|temperature,degrees=degrees! room=room|set the temperature to {0} degrees;make it {0} degrees;set the thermostat to {0}|status:set|The temperature is set to {0}.
set_light,light_control,dim_light|Control a light,Set the brightness of a light|room=room! brightness,level=percent! color=enum:color|set the {0} light to {1} percent;dim the {0} light to {1} percent;{0} light to {1} percent|status:set|The {0} light is at {1} percent.
lock_door,door_lock|Lock a door,Lock the door of a room|door,room=room!|lock the {0} door;please lock the door of the {0};make sure the {0} door is locked|status:locked|The {0} door is locked.
create_event,add_event,calendar_add|Add an event to the calendar,Create a calendar event|title,name=title! date=date! time,start_time=time attendees,people=people|add "{0}" to my calendar on {1};create an event "{0}" on {1};put '{0}' in the calendar for {1}|id:id|The event was added on {1}.
add_reminder,remind,create_reminder|Create a reminder,Remind the user of something|text,what=text! date,when=date! time=time|remind me to "{0}" on {1};on {1} remind me of "{0}";reminder for {1}: "{0}"|id:id|I will remind you on {1}.
track_package,track_parcel,package_status|Track a package or parcel: status and whether it was delivered,Where is a package: track the status of a parcel until it was delivered|tracking_number,tracking_id,number=id!|where is my package {0}?;track package {0};what is the status of parcel {0}?;has {0} been delivered?|status:shipstate city:city|Your package is {status}, last seen in {city}.
get_exchange_rate,exchange_rate|Exchange rate of two currencies: how many for one,Get the exchange rate: how many for one|base,from=currency! quote,to=currency!|what is the exchange rate of {0} to {1}?;exchange rate {0} to {1}?;how many {1} is one {0}?|rate:money|One {0} is {rate} {1}.
get_news,news,latest_news,headlines|Get the latest news,News headlines on a topic|topic=query! limit,count=limit|what is the news about {0}?;show me news on {0};any news about {0}?;latest headlines on {0}|@many|
get_recipe,find_recipe,recipe_search|Find a recipe to cook,Find a recipe by dish: how to cook it|dish,name,query=query! servings=small|how do I cook {0}?;find a recipe for {0};I want to cook {0};give me a recipe for {0}|minutes:int servings:int|The recipe takes {minutes} minutes and serves {servings}.
transfer_money,send_money,pay|Transfer money to a person: send or pay an amount,Send a payment: pay or transfer money to somebody|to,recipient=person! amount=money! currency=currency|transfer {1} to {0};send {0} {1};pay {0} {1};send {1} to {0}|id:id status:done|Done, {0} gets {1}.
get_balance,account_balance,balance|Get the balance of an account,Account balance|account_id,account,iban=id!|what is the balance of {0}?;how much money is on account {0}?;show the balance of account {0}|balance:money currency:currency|The balance is {balance} {currency}.
get_user,user_lookup,find_user|Look up a user: who has this email or account,Find a user account by email: look up who it is|email=email!|who is {0}?;look up the user {0};find the account of {0};which user has the email {0}?|name:person role:role|That is {name}, role {role}.
generate_password,random_password|Generate a random password,Make a secure password|length=small! symbols=bool|generate a password with {0} characters;make me a {0} character password;I need a password of length {0}|password:id|Your new password is {password}.
roll_dice,dice|Roll dice,Roll one or more dice|sides=small! count,times=small|roll a {0} sided die;roll a die with {0} sides;roll a d{0}|result:int|You rolled {result}.
shorten_url,short_link|Shorten a link,Create a short link|url,link=url!|shorten {0};make {0} shorter;give me a short link for {0}|short:url|Here is the short link: {short}
take_screenshot,screenshot|Take a screenshot of a page: capture it,Screenshot or capture a web page|url=url! full_page=bool|take a screenshot of {0};capture {0};screenshot {0}|path:path|The screenshot is in {path}.
get_distance,distance|Distance between two points: how far,Distance of two coordinates: how far it is|from,a=geo! to,b=geo!|how far is it from {0} to {1}?;distance between {0} and {1}?|km:int|It is {km} km.
define_word,dictionary,define|Define a word: what does it mean; look up its meaning,Look up a word in the dictionary: define what it may mean or its meaning|word,term=word!|define {0};what does {0} mean?;look up the word {0};what is the meaning of {0}?|definition:words|It means: {definition}
restart_service,service_restart,restart|Restart or bounce a service,Restart or bounce a running service|service,name=slug! environment,env=enum:env|restart {0};restart the service {0};{0} hangs, restart it;bounce {0}|status:restarted|{0} was restarted.
get_logs,fetch_logs,logs|Get the logs of a service,Read service logs|service,name=slug! level=enum:level lines,tail=limit|show the logs of {0};get logs for {0};what do the logs of {0} say?|@many|
open_ticket,create_ticket,new_ticket|Open a support ticket,File a ticket|title,subject=title! priority=enum:priority! description=text|open a {1} priority ticket "{0}";file a ticket called "{0}" with {1} priority|id:id|Ticket {id} was opened.
create_user,add_user,new_user|Create a new user or add one,Add a new user account: create a user|name=person! email=email! role=enum:role|create a user {0} with email {1};add {0} ({1}) as a user;new user {0}, email {1}|id:id|User {0} was created with id {id}.
book_table,reserve_table|Book a table,Reserve a table in a restaurant|restaurant,name=proper! date=date! time=time! guests,party_size,people=small!|book a table at {0} on {1} at {2} for {3};reserve a table for {3} at {0}, {1} at {2}|id:id|Your table at {0} is booked.
merge_branch,git_merge|Merge a branch,Merge one branch into another|source,from=slug! target,into=slug!|merge {0} into {1};merge the branch {0} into {1}|commit:id|Merged as {commit}.
resize_image,image_resize|Resize or scale an image: make it so many pixels,Change the size of an image: resize or scale it and make it some pixels|path,file=path! width=px! height=px!|resize {0} to {1} by {2};make {0} {1} x {2} pixels;scale {0} to {1}x{2}|status:done|Done, {0} is {1} by {2} now.
log_workout,add_workout|Log a workout: record the minutes that the user did,Record or log an exercise and its minutes|activity,exercise=activity! minutes,duration=minutes! distance_km=money|log {1} minutes of {0};I did {1} minutes of {0};record {0} for {1} minutes|calories:int|Logged, {calories} calories.
rename_file,file_rename|Rename a file so that it is named differently: call it something else,Rename a file: call it something else; so that it should be named anew|path,file,from=path! new_name,name,to=title!|rename {0} to "{1}";call the file {0} "{1}" from now on;{0} should be named '{1}'|status:renamed|The file {0} is renamed.
delete_file,remove_file,rm|Delete or remove a file: get rid of it when no one has a need of it,Remove a file from disk: delete or get rid of it if there is no need any more|path,file,filename=path! force=force|delete {0};remove the file {0};get rid of {0};I do not need {0} any more|status:deleted|The file {0} is gone.
ping_host,check_host,ping|Check or ping a host: is it up and does it answer,Ping a web address: check that it is up and does answer|url,host,address=url!|ping {0};is {0} up?;does {0} answer?;check {0}|ms:int|It answered in {ms} ms.
book_taxi,call_taxi,order_ride|Order or book a taxi ride,Book a ride in a taxi|from,pickup=city! to,dropoff=city! time,pickup_time=time!|book a taxi from {0} to {1} at {2};I need a ride from {0} to {1} at {2};a taxi at {2} from {0} to {1} please|id:id minutes:int|Your taxi {id} comes in {minutes} minutes.
log_expense,add_expense,record_expense|Record an expense: log or add what was spent,Add an expense to the books: log what the user spent|amount,value=money! category,what,label=title! date=date|log an expense of {0} for "{1}";I spent {0} on "{1}";add {0} for '{1}' to my expenses|id:id|The expense of {0} was logged.
split_bill,bill_split|Split a bill among people or divide it,Divide an amount: split a bill|amount,total,bill=money! people,persons,guests=small!|split {0} among {1} people;divide a bill of {0} by {1};we are {1} people and the bill is {0}, split it|each:money|Everyone pays {each}.
air_quality,get_air_quality|Air quality of a city: clean air or pollution,Get the pollution level of the air in a place: its quality|city,location,place=city! date=date|how is the air in {0}?;is the air clean in {0}?;air quality in {0}?;how bad is the pollution in {0}?|index:int|The index in {0} is {index}.
sunrise,get_sunrise,sun_times|Time of sunrise and sunset: when does the sun rise,When the sun rises and sets: sunrise or sunset|city,place=city! date,day=date!|when does the sun rise in {0} on {1}?;sunrise in {0} on {1};what time is sunset in {0} on {1}?|rise:time set:time|From {rise} to {set}.
open_blinds,blinds,move_blinds|Open or close the blinds,Set the position of the blinds|room,where=room! position,percent,level=percent!|open the {0} blinds to {1} percent;move the blinds in the {0} to {1} percent;{0} blinds at {1} percent|status:set|The blinds are at {1} percent.
start_vacuum,vacuum,clean_room|Start the robot vacuum to clean a room,Let the robot clean or vacuum a room|room,area=room! mode=mode|vacuum the {0};clean the {0};send the robot to the {0}|status:cleaning|The {0} is being cleaned.
unlock_door,door_unlock|Unlock or open a door to let people in,Open the lock of a door: unlock it to let them in|door,room=room! minutes=minutes|unlock the {0} door;open the door of the {0};let them into the {0}|status:open|The {0} door is open.
rotate_image,image_rotate|Rotate an image,Turn an image by degrees|path,image,file=path! degrees,angle=degrees!|rotate {0} by {1} degrees;turn the image {0} by {1} degrees|status:done|Done, {0} is turned.
add_to_cart,cart_add,put_in_cart|Put or add a product that the user may want into the cart,Add items to the shopping cart: put in what they want|product,item,name=title! quantity,count,amount=small!|put {1} "{0}" into my cart;add "{0}" to the cart, {1} of them;I want {1} of '{0}'|total:money|The cart is at {total} now.
apply_discount,use_coupon|Apply a discount code or use a coupon,Use a coupon or apply a discount code|code,coupon=id!|apply the code {0};use the coupon {0};I have a discount code {0}|percent:percent|You save {percent} percent.
invite_user,send_invite,add_member|Invite a person by email: send an invitation or add them to the team; let them join,Add someone to the team: send an invitation or invite them to join; let or add|email,address,to=email! role=enum:role|invite {0};send an invitation to {0};let {0} join the team;add {0} to the team|status:sent|{0} was invited.
post_message,slack_post,send_to_channel|Post a message in a channel: write or tell,Write to a chat channel: post something or tell people|channel,room,to=slug! text,message=text!|post "{1}" in {0};write "{1}" to the channel {0};tell {0}: "{1}"|id:id|It was posted in {0}.
scale_service,set_replicas|Scale a service: run or give it a number of replicas or instances,Run a number of instances of a service: scale it or give it replicas|service,name,app=slug! replicas,count,instances=small!|scale {0} to {1} replicas;run {1} instances of {0};give {0} {1} replicas|status:scaling|{0} is scaled to {1}.
rollback,undo_deploy,revert_release|Roll back to an earlier version: put back or undo a release,Undo a release of a service: roll or put it back|service,app,project=slug! version,release,to=id!|roll {0} back to {1};undo the release of {0} and go to {1};put {0} back to version {1}|status:done|{0} is back at {1}.
measure_speed,speed_test|Measure the speed of a page: test how fast or quickly it loads,Test how fast a page is: measure the speed and how quickly it loads|url,page,site=url! runs,times=small|how fast is {0}?;measure the speed of {0};test how quickly {0} loads|ms:int|It takes {ms} ms.
random_number,pick_number|Pick a random number: give any number,Random integer number in a range: pick or give any|min,low,from=small! max,high,to=int!|pick a number between {0} and {1};random number from {0} to {1};give me any number from {0} up to {1}|number:int|Your number is {number}.
set_goal,new_goal,daily_goal|Set a daily goal: what the user wants to do a day,Change the goal of an activity: set what to do in a day|activity,sport=activity! minutes,duration,goal=minutes!|my goal is {1} minutes of {0};set a goal of {1} minutes for {0};I want to do {1} minutes of {0} a day|status:set|The goal is {1} minutes of {0}.
check_visa,visa_rules|Check whether a visa is needed,Visa rules between countries|from,nationality,passport=country! to,destination,country=country!|do I need a visa for {1} with a passport from {0}?;visa rules from {0} to {1}?;can people from {0} travel to {1} without a visa?|days:days|You may stay {days} days.
get_population,population|Population of a country: how many people live there,How many people live in a country: the population|country,name,nation=country!|how many people live in {0}?;what is the population of {0}?;population of {0}?|people:int|{people} people live in {0}.
change_password,set_password,reset_password|Change the password of a user,Set a new password|user,email,account=email! password,new_password=id!|change the password of {0} to {1};set {1} as the password of {0};new password for {0}: {1}|status:changed|The password of {0} was changed.
create_poll,poll,new_poll|Create a poll,Start a poll with options|question=text! options,choices=tags!|start a poll "{0}" with the options {1};create a poll: "{0}", options {1}|id:id|The poll was created with id {id}.
"""
HELD_TOOLS = {"track_package", "set_light", "book_hotel", "define_word", "resize_image", "get_user", "transfer_money", "create_poll", "get_news"}

# Free tools: a verb and a noun from these lists or invented, parameters by kind, requests by pattern.
VERBS = """activate adjust analyze announce approve archive arrange ask attach audit back_up ban bake block boost bring broadcast browse build charge
check claim clean close collect compare compile compress configure confirm connect contact cook copy cut debug decline deliver deploy describe design
detect dim discover display draw drive email encrypt estimate examine explain extend extract feed file fill filter fix flag fly follow forward freeze
generate grant greet group grow guide hang hide hire identify import inspect install insert join judge jump keep label learn lend lift link load log
lower mail map mark match measure mention merge mix monitor mute name notify observe offer open organize pack paint park paste pay pin place play
plot post predict press print process promote publish pull push rank reach receive recommend record recover refill reject release rename rent repair
repeat replace reply report reserve reset resolve restore review ride ring rotate run save scan sell send separate serve set sign sing skip solve sort
speak split store submit subscribe suggest swap switch tag teach test throw touch train trim turn unlock upgrade upload vote wake walk wash watch water weigh wipe wrap zoom""".split()
FREE = {  # kind: parameter names | what stands around the value in a request
    "city": "city location place town where destination|in {v};in {v};to {v};for {v};near {v};from {v};of {v}", "person": "person name to recipient user who owner customer guest|to {v};for {v};with {v};by {v};of {v}",
    "email": "email to recipient address user account|to {v};for {v};of {v};{v}", "date": "date day when on due_date start from check_in|on {v};for {v};from {v};by {v}", "time": "time at start_time when|at {v};for {v}",
    "money": "amount price value total budget cost sum|for {v};of {v};over {v};worth {v};{v}", "small": "count number guests seats times quantity people copies servings rooms|{v} {p};for {v} {p};with {v} {p};times {v};{v}",
    "percent": "percent level brightness volume share speed|to {v} percent;at {v} percent;{v} percent;to {v}", "minutes": "minutes duration length timeout|for {v} minutes;{v} minutes", "days": "days nights duration num_days|for {v} days;{v} days;next {v} days",
    "room": "room area where zone|in the {v};for the {v};of the {v}", "query": "query topic q keyword about dish subject|about {v};on {v};for {v};for \"{v}\";matching \"{v}\"", "title": "title name song label question subject|called \"{v}\";\"{v}\";'{v}';named '{v}'",
    "text": "text message body content note|saying \"{v}\";\"{v}\";with the text \"{v}\";: \"{v}\"", "word": "word term name tag|{v};called {v};for {v}", "url": "url link page site website|{v};at {v};from {v};of {v}", "path": "path file image document source|{v};in {v};from {v};of {v}",
    "id": "id number code key ref tracking_number account|{v};with id {v};number {v};for {v};of {v}", "phone": "phone phone_number number contact|{v};to {v};at {v}", "country": "country nation region|in {v};for {v};of {v};from {v}", "lang": "language lang target_language|in {v};to {v};into {v}",
    "ticker": "symbol ticker stock|{v};of {v};for {v}", "currency": "currency unit|in {v};to {v}", "activity": "activity sport exercise|for {v};of {v};{v}", "tags": "tags labels options choices keywords|with {v};options {v};{v};tagged {v}", "people": "people guests attendees members|with {v};for {v}",
    "slug": "branch project service channel repo|{v};in {v};on {v};for {v}", "px": "width height size pixels|{v} pixels;to {v} pixels;{v}", "stars": "stars rating score|with {v} stars;{v} stars;as {v}", "address": "address delivery_address shipping_address|to {v};at {v}", "geo": "location position coordinates|at {v};near {v}",
    "expr": "expression formula|{v};of {v}", "proper": "restaurant place company brand|at {v};of {v};from {v}", "enum:size": "size|{v};in {v};size {v}", "enum:color": "color|in {v};{v}", "enum:priority": "priority urgency|with {v} priority;as {v} priority",
}
PAIRS = {"from origin source start": "to destination target end", "a first left": "b second right", "base source": "quote target"}
OPTIONAL = "priority notify date time limit city tags size color format people urgent private mode channel period env".split()

CHAT = [  # (user variants, answer)
    ("hello;hi;hey;hello!;hi there;hey there;good morning;good evening;hello there", "Hello! I am the Rein demo model. Give me some tools and a task."),
    ("how are you?;how are you doing?;how's it going?;what's up?;hi, how are you?", "I am fine, thank you. What can I do for you?"),
    ("who are you?;what are you?;what is your name?;introduce yourself;tell me about yourself;what's your name?;who am I talking to?;are you kimi?;are you chatgpt?;which model are you?;what model are you?",
     "I am the Rein demo model, a very small language model that was trained to call tools."),
    ("who made you?;who created you?;who trained you?;where do you come from?", "I was trained by the Rein project, on synthetic conversations."),
    ("how big are you?;how many parameters do you have?;are you a large model?", "I am very small: about four million parameters in a mixture of experts."),
    ("thanks;thank you;thanks a lot;thank you very much!;great, thanks;thx;cool, thanks", "You are welcome!"),
    ("bye;goodbye;see you;bye bye;good night;see you later", "Goodbye!"),
    ("ok;okay;cool;great;nice;alright;sounds good", "Good. What should I do next?"),
    ("tell me a joke;do you know a joke?;make me laugh;say something funny", "Why did the tiny model call a tool? It could not remember the answer."),
    ("are you a human?;are you real?;are you an AI?;are you a bot?;are you conscious?", "I am a small AI model, not a human."),
    ("say hello;say hi;greet me", "Hello!"),
    ("test;testing;ping;is this working?;are you there?;can you hear me?", "Yes, I am here."),
    ("yes;no;maybe;sure", "All right. What should I do?"),
    ("what is rein?;what's rein?;tell me about rein;explain rein", "Rein is a serving cluster for mixture-of-experts language models. I am its demo model."),
    ("what is a mixture of experts?;what is moe?;explain mixture of experts", "In a mixture of experts each token uses only a few of the model's experts."),
    ("do you speak german?;do you speak french?;which languages do you speak?;can you speak spanish?", "Only English, and only a little."),
    ("what is the meaning of life?;what is love?;do you have feelings?;what do you think about politics?;what is your opinion?", "I am too small for that question."),
    ("you are wrong;that is wrong;that's not right;are you sure?;no, that's wrong", "I am sorry. I am a small model and make mistakes."),
    ("help;help me;can you help me?;i need help;what should i do?", "Tell me what you need. I can call the tools that you give me."),
    ("count to five;count to 5;can you count to five?;count from 1 to 5", "1, 2, 3, 4, 5"),
]
UNKNOWN = """who wrote {w}?;explain {w} {w2} to me;write a poem about {w};tell me a story about {w};why is {w} {w2}?;what is {w2} {w}?;summarize {w} {w2};
write an essay on {w};how does {w} work?;who invented the {w}?;what do you know about {w}?;write python code for {w};when was {w} born?;
what is the best {w}?;describe {w} in three sentences;what is the history of {w}?;write a haiku about {w};who won the {w} in 2014?""".replace("\n", "").split(";")
SYSTEM = ["You are a helpful assistant.", "You are a helpful assistant", "You are a concise assistant.", "You are an assistant with tools.", "Use the tools when they help.",
          "Answer briefly.", "You are the Rein demo model.", "You are a helpful assistant. Use the tools if needed.", "Be polite and short."]
